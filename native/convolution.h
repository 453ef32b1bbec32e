// Convolutions: forward pass, gradients of weights and input.
#pragma once
#include "pass.h"
#include "pooling.h"
#include "winograd.h"

namespace WECFL_ISA {

static ConvShape conv_shape(const Geometry& in, const Geometry& out) {
    return {in.channels,
            out.channels,
            out.height,
            out.width,
            in.plane() * LANES,
            size_t(in.columns()) * LANES,
            out.plane() * LANES,
            size_t(out.columns()) * out.step * LANES,
            size_t(out.step) * LANES};
}

// Kernel size and stride as compile-time numbers.
template <class F>
static void with_kernel(const Op& op, F f) {
    auto stride = [&](auto k) { return op.stride == 1 ? f(k, Constant<1>{}) : f(k, Constant<2>{}); };
    switch (op.kernel) {
        case 1:
            return stride(Constant<1>{});
        case 3:
            return stride(Constant<3>{});
        case 5:
            return stride(Constant<5>{});
        default:
            return stride(Constant<7>{});
    }
}

// The weights of all convolutions that run by winograd.h, for the forward pass or the input gradient.
static void combine(const Pass& p, bool back) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (!(back ? op.pairs_back : op.pairs)) continue;
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels;
        with_kernel(op, [&](auto k, auto) {
            constexpr int K = decltype(k)::value;
            if constexpr (K > 1)
                back ? combine_weights<K>(co, ci, p.flipped + op.partial_at, p.combined + op.combined_back_at)
                     : combine_weights<K>(ci, co, p.row + op.weight, p.combined + op.combined_at);
        });
    }
}

static void forward_conv(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float *in = p.value(op.in, b), *w = p.row + op.weight,
                *bias = op.bias < 0 ? nullptr : p.row + op.bias;
    ConvShape s = conv_shape(gi, go);
    with_kernel(op, [&](auto k, auto stride) {
        constexpr int K = decltype(k)::value, S = decltype(stride)::value;
        auto rows = [&](float* out, int from, int to) {
            if constexpr (K > 1 && S == 1)
                if (op.pairs)
                    return conv_pairs<K>(s, in, p.combined + op.combined_at, bias, p.room, out, from, to);
            conv_forward<K, S>(s, in, w, bias, out, from, to);
        };
        if (op.fused_pool < 0) return rows(p.value(op.out, b) + go.at(0, 0, 0) * LANES, 0, go.height);
        // Two rows at a time into a small buffer, then through ReLU and the pooling after it.
        const Op& pool = p.net.ops[op.fused_pool];
        const Geometry& gp = p.tensor(pool.out).value;
        float* out = p.value(pool.out, b);
        uint8_t* codes = p.code(pool, b);
        s.out_row = size_t(go.width) * LANES;
        s.out_plane = 2 * s.out_row;
        s.out_step = LANES;
        for (int y = 0; y < gp.height; y++) {
            rows(p.rows, 2 * y, 2 * y + 2);
            for (int c = 0; c < go.channels; c++)
                for (int x = 0; x < gp.width; x++) {
                    const float* t = p.rows + c * s.out_plane + 2 * x * LANES;
                    Winner won =
                        winner(load(t), load(t + LANES), load(t + s.out_row), load(t + s.out_row + LANES));
                    store(out + gp.at(c, y, x) * LANES, won.best);
                    put_code(codes + ((size_t(c) * gp.height + y) * gp.width + x) * LANES, won.code);
                }
        }
    });
}

static void backward_conv(const Pass& p, const Op& op, int b) {
    const Tensor &ti = p.tensor(op.in), &to = p.tensor(op.out);
    const float* up = p.grad(op.out, b);
    with_kernel(op, [&](auto k, auto stride) {
        constexpr int K = decltype(k)::value, S = decltype(stride)::value;
        ConvShape s = conv_shape(ti.value, to.grad);
        const float* inner = up + to.grad.at(0, 0, 0) * LANES;
        conv_weights<K, S>(s, p.value(op.in, b), inner, p.partial + op.partial_at * LANES);
        if (op.bias >= 0) {
            float* sums =
                p.partial + (op.partial_at + size_t(s.in_channels) * s.out_channels * K * K) * LANES;
            for (int o = 0; o < s.out_channels; o++) {
                V acc = load(sums + o * LANES);
                pixels(to.grad, o, [&](int, int, size_t at) { acc += load(up + at); });
                store(sums + o * LANES, acc);
            }
        }
        if (!op.input_gradient) return;
        // The gradient of the input: a convolution of the bordered gradient with the turned kernel.
        const Geometry &h = to.grad, &hi = ti.grad;
        const ConvShape back = conv_shape(h, hi);
        float* out = p.grad(op.in, b) + hi.at(0, 0, 0) * LANES;
        if constexpr (K > 1)
            if (op.pairs_back)
                return conv_pairs<K>(back, up, p.combined + op.combined_back_at, nullptr, p.room, out, 0,
                                     hi.height);
        conv_forward<K, 1>(back, up, p.flipped + op.partial_at, nullptr, out, 0, hi.height);
    });
}

// The turned kernels of all convolutions: flipped[c][o][K−1−i][K−1−j] = w[o][c][i][j].
static void turn_kernels(const Pass& p) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (op.kind != Kind::conv || !op.input_gradient) continue;
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels,
                  kk = op.kernel * op.kernel;
        const float* w = p.row + op.weight;
        float* to = p.flipped + op.partial_at;
        for (int o = 0; o < co; o++)
            for (int c = 0; c < ci; c++)
                for (int k = 0; k < kk; k++)
                    to[(size_t(c) * co + o) * kk + kk - 1 - k] = w[(size_t(o) * ci + c) * kk + k];
    }
}

// Adds up the lanes of the partial sums of all convolutions: the gradients of their weights.
static void reduce_partial_sums(const Pass& p, float* gradient) {
    for (int i = 0; i < p.net.op_count; i++) {
        const Op& op = p.net.ops[i];
        if (op.kind != Kind::conv) continue;
        const int co = p.tensor(op.out).value.channels;
        const size_t count = size_t(co) * p.tensor(op.in).value.channels * op.kernel * op.kernel;
        const float* sums = p.partial + op.partial_at * LANES;
        for (size_t n = 0; n < count; n++) gradient[op.weight + n] = sum(load(sums + n * LANES));
        if (op.bias >= 0)
            for (int o = 0; o < co; o++) gradient[op.bias + o] = sum(load(sums + (count + o) * LANES));
    }
}

}  // namespace WECFL_ISA
