// The loops of a convolution, which take most of the time. Each works on one block of LANES samples, with
// register tiles over output channels × output columns; sizes come at run time, the tile and the kernel
// size are template parameters, remainders run through smaller tiles.
#pragma once
#include "simd.h"

namespace WECFL_ISA {

struct ConvShape {
    int in_channels, out_channels, height, width;  // of the output
    size_t in_plane, in_row;                       // floats from channel to channel, from row to row
    size_t out_plane, out_row;
};

// acc[p][q] = bias[p] + Σ_c Σ_i Σ_j in[c][i][q·S + j] · w[p][c][i][j], i < H and j < W; then done(p, q, acc).
// Weights are broadcast, inputs loaded once per tap; OB·XB accumulators stay in registers.
template <int H, int W, int S, int OB, int XB, class Done>
INLINE void conv_tile(const ConvShape& s, const float* in, const float* w, const float* bias, Done done) {
    V acc[OB][XB];
    const size_t per_out = size_t(s.in_channels) * H * W;
    EACH(p, OB)
        EACH(q, XB) acc[p][q] = all(bias ? bias[p] : 0.f);
    for (int c = 0; c < s.in_channels; c++)
        for (int i = 0; i < H; i++) {
            const float* ip = in + c * s.in_plane + i * s.in_row;
            const float* wp = w + (size_t(c) * H + i) * W;
            EACH(j, W) {
                if constexpr (OB >= XB) {
                    V u[XB];
                    EACH(q, XB) u[q] = load(ip + (q * S + j) * LANES);
                    EACH(p, OB) {
                        V weight = all(wp[p * per_out + j]);
                        EACH(q, XB) acc[p][q] += u[q] * weight;
                    }
                } else {
                    V weight[OB];
                    EACH(p, OB) weight[p] = all(wp[p * per_out + j]);
                    EACH(q, XB) {
                        V u = load(ip + (q * S + j) * LANES);
                        EACH(p, OB) acc[p][q] += u * weight[p];
                    }
                }
            }
        }
    EACH(p, OB)
        EACH(q, XB) done(p, q, acc[p][q]);
}

// A row in tiles of XB columns; what is left over in two halves, so that no tile is thin.
template <int XB, class F>
INLINE void in_tiles(int width, F tile) {
    constexpr int HALF = (XB + 1) / 2;
    int x = 0;
    auto next = [&](auto size) {
        tile(x, size);
        x += decltype(size)::value;
    };
    while (width - x >= XB && (width - x - XB == 0 || width - x - XB >= HALF || XB <= 2))
        next(Constant<XB>{});
    while (width - x >= HALF) next(Constant<HALF>{});
    if constexpr (HALF > 2)
        while (width - x >= 2) next(Constant<2>{});
    if constexpr (HALF > 1)
        while (x < width) next(Constant<1>{});
}

// Rows [from, to) of all output channels: done(o, y − from, x, value). Tiles of 12 accumulators: 12 of
// 16 registers on AVX2, and enough of them to hide the latency of a multiply-add.
template <int H, int W, int S, class Done>
static void convolve(const ConvShape& s, const float* in, const float* w, const float* bias, int from, int to,
                     Done done) {
    int o = 0;
    auto channels = [&](auto ob, auto xb) {
        constexpr int OB = decltype(ob)::value, XB = decltype(xb)::value;
        for (int y = from; y < to; y++)
            in_tiles<XB>(s.width, [&](int x, auto size) {
                conv_tile<H, W, S, OB, decltype(size)::value>(
                    s, in + size_t(y) * S * s.in_row + size_t(x) * S * LANES,
                    w + size_t(o) * s.in_channels * H * W, bias ? bias + o : nullptr,
                    [&](int p, int q, V v) { done(o + p, y - from, x + q, v); });
            });
        o += OB;
    };
    while (s.out_channels % 4 && s.out_channels - o >= 6) channels(Constant<6>{}, Constant<2>{});
    while (s.out_channels - o >= 4) channels(Constant<4>{}, Constant<3>{});
    while (s.out_channels - o >= 2) channels(Constant<2>{}, Constant<6>{});
    while (o < s.out_channels) channels(Constant<1>{}, Constant<8>{});
}

// out[o][y][x] of rows [from, to); `out` points at row `from`.
template <int K, int S>
static void conv_forward(const ConvShape& s, const float* in, const float* w, const float* bias, float* out,
                         int from, int to) {
    convolve<K, K, S>(s, in, w, bias, from, to, [&](int o, int y, int x, V v) {
        store(out + o * s.out_plane + y * s.out_row + x * LANES, v);
    });
}

// partial[o][c][i][j][lane] += Σ_y Σ_x grad[o][y][x] · in[c][y + i][x + j] for OB outputs and CB inputs:
// lanes are summed once per step, not here.
template <int K, int OB, int CB>
INLINE void conv_weights_tile(const ConvShape& s, const float* in, const float* grad, float* partial,
                              int from, int to) {
    const size_t per_out = size_t(s.in_channels) * K * K * LANES, per_in = K * K * LANES;
    for (int i = 0; i < K; i++) {
        V acc[OB][CB * K];
        float* sums = partial + size_t(i) * K * LANES;
        EACH(p, OB)
            EACH(t, CB * K) acc[p][t] = load(sums + p * per_out + t / K * per_in + t % K * LANES);
        for (int y = from; y < to; y++) {
            const float* ip = in + (size_t(y) + i) * s.in_row;
            const float* gp = grad + y * s.out_row;
            for (int x = 0; x < s.width; x++, ip += LANES, gp += LANES) {
                V g[OB];
                EACH(p, OB) g[p] = load(gp + p * s.out_plane);
                EACH(t, CB * K) {
                    V u = load(ip + t / K * s.in_plane + t % K * LANES);
                    EACH(p, OB) acc[p][t] += g[p] * u;
                }
            }
        }
        EACH(p, OB)
            EACH(t, CB * K) store(sums + p * per_out + t / K * per_in + t % K * LANES, acc[p][t]);
    }
}

// Rows are taken in bands that stay in the first-level cache. Inlined into a long function, the loops get too few
// registers (GCC 12: 8 % slower in training the Fashion-MNIST CNN with AVX2).
template <int K>
static __attribute__((noinline)) void conv_weights(const ConvShape& s, const float* in, const float* grad, float* partial) {
    constexpr int OB = K == 3 ? 4 : K == 5 ? 2 : 1;   // OB·CB·K accumulators
    constexpr int CB = K == 3 && LANES_16 ? 2 : 1;  // AVX-512 has 32 registers
    const int band = K == 3 ? (s.width < 64 ? 64 / s.width : 1) : s.width > 20 ? 4 : s.height;
    for (int y = 0; y < s.height; y += band) {
        const int to = y + band < s.height ? y + band : s.height;
        int c = 0;
        auto inputs = [&](auto cb) {
            constexpr int N = decltype(cb)::value;
            int o = 0;
            auto tile = [&](auto ob) {
                conv_weights_tile<K, decltype(ob)::value, N>(
                    s, in + c * s.in_plane, grad + o * s.out_plane,
                    partial + (size_t(o) * s.in_channels + c) * K * K * LANES, y, to);
                o += decltype(ob)::value;
            };
            while (o + OB <= s.out_channels) tile(Constant<OB>{});
            if constexpr (OB > 1)
                while (o < s.out_channels) tile(Constant<1>{});
            c += N;
        };
        while (c + CB <= s.in_channels) inputs(Constant<CB>{});
        if constexpr (CB > 1)
            while (c < s.in_channels) inputs(Constant<1>{});
    }
}

}  // namespace WECFL_ISA
