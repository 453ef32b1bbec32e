// Convolutions of stride 1 with fewer multiplications: two neighbouring rows of the output at a time.
//
// A column of K = 3 + 2n taps is a Winograd F(2, 3) and n times an F(2, 2). Of inputs d0 … dK and weights
// g0 … g(K−1) the two outputs are y0 = A + P + Q and y1 = Z + P − Q, where, with j = 3, 5, … K − 2,
//
//   P = (d1 + d2) · (g0 + g1 + g2) / 2 + Σ_j dj+1 · (gj + gj+1)    A = (d0 − d2) · g0 + Σ_j (dj − dj+1) · gj
//   Q = (d2 − d1) · (g0 − g1 + g2) / 2                             Z = (d3 − d1) · g2 + Σ_j (dj+2 − dj+1) · gj+1
//
// Those are 4 products for 6 if K = 3, 7 for 10 if K = 5, 10 for 14 if K = 7. Each of P, Q, A and Z is a
// convolution by 1 × K kernels of rows that were combined once for all output channels, with weights that
// were combined once for all samples. Nothing is scaled but by a half, and sums are shorter: rounding is no
// worse than that of the direct way.
#pragma once
#include "conv_loops.h"
#include "plan.h"

namespace WECFL_ISA {

enum Form { P, Q, A, Z };

template <int K>
struct Products {
    static constexpr int many = (K - 1) / 2, all = wecfl::products(K);
    static constexpr int count[4] = {many, 1, many, many};
    static constexpr int first[4] = {0, many, many + 1, 2 * many + 1};
};

// K + 1 rows of all input channels, combined: to[product][c][x]. Without the last, Z is not wanted.
template <int K>
static void combine_rows(const ConvShape& s, const float* in, bool last, float* to) {
    const int columns = s.width + K - 1;
    const size_t product = size_t(s.in_channels) * columns * LANES;
    auto at = [&](int form, int t) { return to + (Products<K>::first[form] + t) * product; };
    for (int c = 0; c < s.in_channels; c++, in += s.in_plane)
        for (int x = 0; x < columns; x++, to += LANES) {
            V d[K + 1];
            EACH(i, K) d[i] = load(in + i * s.in_row + x * LANES);
            d[K] = last ? load(in + K * s.in_row + x * LANES) : V{};
            store(at(P, 0), d[1] + d[2]);
            store(at(Q, 0), d[2] - d[1]);
            store(at(A, 0), d[0] - d[2]);
            store(at(Z, 0), d[3] - d[1]);
            EACH(t, Products<K>::many - 1) {
                const int j = 2 * t + 3;
                store(at(P, t + 1), d[j + 1]);
                store(at(A, t + 1), d[j] - d[j + 1]);
                store(at(Z, t + 1), d[j + 2] - d[j + 1]);
            }
        }
}

// Weights w[o][c][i][j], combined: to[form][o][product][c][j].
template <int K>
static void combine_weights(int in_channels, int out_channels, const float* w, float* to) {
    using T = Products<K>;
    for (int o = 0; o < out_channels; o++)
        for (int c = 0; c < in_channels; c++, w += K * K)
            for (int j = 0; j < K; j++) {
                auto g = [&](int i) { return w[i * K + j]; };
                auto put = [&](int form, int t, float v) {
                    const size_t row = size_t(T::first[form]) * out_channels + o * T::count[form] + t;
                    to[(row * in_channels + c) * K + j] = v;
                };
                put(P, 0, .5f * (g(0) + g(1) + g(2)));
                put(Q, 0, .5f * (g(0) - g(1) + g(2)));
                put(A, 0, g(0));
                put(Z, 0, g(2));
                for (int t = 1; t < T::many; t++) {
                    put(P, t, g(2 * t + 1) + g(2 * t + 2));
                    put(A, t, g(2 * t + 1));
                    put(Z, t, g(2 * t + 2));
                }
            }
}

// Like conv_forward, with combined weights and room for the combined rows and for P ± Q of a pair of rows.
template <int K>
static void conv_pairs(const ConvShape& s, const float* in, const float* w, const float* bias, float* room,
                       float* out, int from, int to) {
    using T = Products<K>;
    const size_t plane = size_t(s.width + K - 1) * LANES, product = s.in_channels * plane;
    float* sums = room + T::all * product;
    for (int y = from; y < to; y += 2, out += 2 * s.out_row) {
        const bool both = y + 1 < to;
        combine_rows<K>(s, in + y * s.in_row, both, room);
        // One instantiation of the loops for all four: the choice after each sum costs nothing that could be measured,
        // and four instantiations took a third of the build.
        for (int form = P; form <= (both ? Z : A); form++) {
            ConvShape f = s;
            f.in_channels = T::count[form] * s.in_channels;
            f.in_plane = plane;
            const float* weights = w + size_t(T::first[form]) * s.out_channels * s.in_channels * K;
            auto place = [&](int o, int, int x, V v) {
                float *sum = sums + (o * s.width + x) * 2 * LANES, *to = out + o * s.out_plane + x * LANES;
                if (form == P) return store(sum, v);
                if (form == A) return store(to, load(sum) + v);
                if (form == Z) return store(to + s.out_row, load(sum + LANES) + v);
                const V p = load(sum);
                store(sum, p + v);
                store(sum + LANES, p - v);
            };
            convolve<1, K, 1>(f, room + T::first[form] * product, weights, form == P ? bias : nullptr, 0, 1, place);
        }
    }
}

}  // namespace WECFL_ISA
