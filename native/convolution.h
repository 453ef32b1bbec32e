// Convolutions: forward pass, gradients of weights and input.
#pragma once
#include "pass.h"
#include "pooling.h"
#include "squares.h"

namespace WECFL_ISA {

static ConvShape conv_shape(const Geometry& in, const Geometry& out) {
    return {in.channels,
            out.channels,
            out.height,
            out.width,
            in.plane() * LANES,
            size_t(in.columns()) * LANES,
            out.plane() * LANES,
            size_t(out.columns()) * LANES};
}

// The kernel size as a compile-time number.
template <class F>
static void with_kernel(const Op& op, F f) {
    switch (op.kernel.y) {
        case 3:
            return f(Constant<3>{});
        case 5:
            return f(Constant<5>{});
        default:
            return f(Constant<7>{});
    }
}

// Where a convolution of this padding begins to read a tensor, whose border may be wider.
INLINE const float* padded(const Geometry& g, const float* value, const Sides& pad) {
    return value + (size_t(g.border - pad.y) * g.columns() + (g.border - pad.x)) * LANES;
}

// The weights of all convolutions that run by winograd.h, for the forward pass or the input gradient.
static void combine(const Pass& p, bool back) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (op.squares) {
            const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels;
            if (!back || op.input_gradient)
                combine_square_weights(ci, co, p.row + op.weight, back,
                                       p.combined + (back ? op.combined_back_at : op.combined_at));
            continue;
        }
        if (!(back ? op.pairs_back : op.pairs)) continue;
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels;
        with_kernel(op, [&](auto k) {
            constexpr int K = decltype(k)::value;
            back ? combine_weights<K>(co, ci, p.flipped + op.flipped_at, p.combined + op.combined_back_at)
                 : combine_weights<K>(ci, co, p.row + op.weight, p.combined + op.combined_at);
        });
    }
}

static void forward_conv(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float *in = padded(gi, p.value(op.in, b), op.pad), *w = p.row + op.weight,
                *bias = op.bias < 0 ? nullptr : p.row + op.bias;
    ConvShape s = conv_shape(gi, go);
    with_kernel(op, [&](auto k) {
        constexpr int K = decltype(k)::value;
        auto rows = [&](float* out, int from, int to) {
            if (op.squares) return conv_squares(s, in, p.combined + op.combined_at, bias, p.room, out, from, to);
            if (op.pairs)
                return conv_pairs<K>(s, in, p.combined + op.combined_at, bias, p.room, out, from, to);
            conv_forward<K, 1>(s, in, w, bias, out, from, to);
        };
        if (op.fused_pool < 0) return rows(p.value(op.out, b) + go.at(0, 0, 0) * LANES, 0, go.height);
        // Two rows at a time into a small buffer, then through ReLU and the pooling after it.
        const Op& pool = p.net.ops[op.fused_pool];
        const Geometry& gp = p.tensor(pool.out).value;
        float* out = p.value(pool.out, b);
        uint8_t* codes = p.code(pool, b);
        s.out_row = size_t(go.width) * LANES;
        s.out_plane = 2 * s.out_row;
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
    with_kernel(op, [&](auto k) {
        constexpr int K = decltype(k)::value;
        ConvShape s = conv_shape(ti.value, to.grad);
        const float* inner = up + to.grad.at(0, 0, 0) * LANES;
        const float* in = padded(ti.value, p.value(op.in, b), op.pad);
        if (op.squares)
            conv_square_weights(s, in, inner, p.room, p.square_sums + op.square_sums_at);
        else
            conv_weights<K>(s, in, inner, p.partial + op.partial_at * LANES);
        if (op.bias >= 0)
            add_channel_sums(to.grad, up, p.partial + (op.partial_at + op.partial_weights) * LANES);
        if (!op.input_gradient) return;
        // The gradient of the input: a convolution of the bordered gradient with the turned kernel.
        const Geometry &h = to.grad, &hi = ti.grad;
        const ConvShape back = conv_shape(h, hi);
        float* out = p.grad(op.in, b) + hi.at(0, 0, 0) * LANES;
        if (op.squares)
            return conv_squares(back, up, p.combined + op.combined_back_at, nullptr, p.room, out, 0, hi.height);
        if (op.pairs_back)
            return conv_pairs<K>(back, up, p.combined + op.combined_back_at, nullptr, p.room, out, 0,
                                 hi.height);
        conv_forward<K, 1>(back, up, p.flipped + op.flipped_at, nullptr, out, 0, hi.height);
    });
}

// The gradients of weights that squares.h summed up.
static void reduce_square_sums(const Pass& p, float* gradient) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (op.squares)
            squares_to_weights(p.tensor(op.in).value.channels, p.tensor(op.out).value.channels,
                               p.square_sums + op.square_sums_at, gradient + op.weight);
    }
}

// The turned kernels of all convolutions: flipped[c][o][K−1−i][K−1−j] = w[o][c][i][j]; for general ones in the
// order of their phases.
static void turn_kernels(const Pass& p) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if ((op.kind != Kind::conv && op.kind != Kind::any_conv) || !op.input_gradient || op.squares) continue;
        const float* w = p.row + op.weight;
        float* to = p.flipped + op.flipped_at;
        if (op.kind == Kind::any_conv) {
            for (size_t k = 0; k < op.any->weights(); k++) to[k] = w[op.any->order[k]];
            continue;
        }
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels,
                  kk = op.kernel.area();
        for (int o = 0; o < co; o++)
            for (int c = 0; c < ci; c++)
                for (int k = 0; k < kk; k++)
                    to[(size_t(c) * co + o) * kk + kk - 1 - k] = w[(size_t(o) * ci + c) * kk + k];
    }
}

}  // namespace WECFL_ISA
