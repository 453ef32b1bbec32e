// BatchNorm, alone and with ReLU and a 2 × 2 maximum after it. It looks at all blocks of a batch at once.
#pragma once
#include <cmath>

#include "norm_rows.h"
#include "pooling.h"

namespace WECFL_ISA {

// Statistics of an operation: mean, 1/√(variance + ε), Σg, Σg·x̂ for each channel.
struct Statistics {
    float *mean, *inverse, *sum, *sum_hat;
};
static Statistics statistics(const Pass& p, const Op& op) {
    float* at = p.statistics + op.statistics_at;
    const int c = p.tensor(op.in).value.channels;
    return {at, at + c, at + 2 * c, at + 3 * c};
}

// The statistics of a batch, or the running ones; training moves those towards the batch's.
static void measure(const Pass& p, const Op& op) {
    const Geometry& g = p.tensor(op.in).value;
    const Statistics s = statistics(p, op);
    float *mean = p.row + op.mean, *variance = p.row + op.variance;
    const double n = p.samples_per_channel(g);
    for (int c = 0; c < g.channels; c++) {
        if (p.mode == Mode::running) {
            s.mean[c] = mean[c];
            s.inverse[c] = 1.f / std::sqrt(variance[c] + op.eps);
            continue;
        }
        double total = 0, rest = 0, squares = 0;
        for (int b = 0; b < p.blocks; b++) {
            const float* z = p.value(op.in, b);
            V acc = {};
            pixels(g, c, [&](int, int, size_t at) {
                fetch_ahead(z + at);
                acc += load(z + at);
            });
            total += sum(acc * p.live(b));
        }
        const float near = float(total / n);
        for (int b = 0; b < p.blocks; b++) {  // around the sum's rounded mean, which `rest` then corrects
            const float* z = p.value(op.in, b);
            V acc = {}, acc_squares = {};
            pixels(g, c, [&](int, int, size_t at) {
                V d = load(z + at) - near;
                acc += d;
                acc_squares += d * d;
            });
            rest += sum(acc * p.live(b)), squares += sum(acc_squares * p.live(b));
        }
        squares -= rest * rest / n;
        s.mean[c] = float(near + rest / n);
        s.inverse[c] = float(1 / std::sqrt(squares / n + op.eps));
        if (p.mode == Mode::train) {
            mean[c] += op.momentum * (s.mean[c] - mean[c]);
            variance[c] += op.momentum * (float(squares / (n - 1)) - variance[c]);
        }
    }
}

INLINE Affine affine(const Pass& p, const Op& op, const Statistics& s, int c) {
    const float weight = op.weight < 0 ? 1.f : p.row[op.weight + c];
    return {all(s.mean[c]), all(weight * s.inverse[c]), all(op.bias < 0 ? 0.f : p.row[op.bias + c])};
}

static void forward_norm(const Pass& p, const Op& op, int b) {
    const Statistics s = statistics(p, op);
    forward_norm_rows(p, op, b, [&](int c) { return affine(p, op, s, c); });
}

static void forward_norm_relu_pool(const Pass& p, const Op& op, int b) {
    const Statistics s = statistics(p, op);
    forward_pool2(p, op, b, [&](int c) { return affine(p, op, s, c); });
}

// Σg and Σg·x̂ of a BatchNorm, and so its own gradients; `sums(b, c, mean, inverse)` are those of a block.
template <class Sums>
static void norm_gradients(const Pass& p, const Op& op, float* gradient, Sums sums) {
    const Statistics s = statistics(p, op);
    for (int c = 0; c < p.tensor(op.in).value.channels; c++) {
        double total = 0, total_hat = 0;
        for (int b = 0; b < p.blocks; b++) {
            const ChannelSums own = sums(b, c, all(s.mean[c]), all(s.inverse[c]));
            total += sum(own.plain), total_hat += sum(own.hat);
        }
        s.sum[c] = float(total), s.sum_hat[c] = float(total_hat);
        if (op.bias >= 0) gradient[op.bias + c] = s.sum[c];
        if (op.weight >= 0) gradient[op.weight + c] = s.sum_hat[c];
    }
}

// ∂z = γ/σ·(g − Σg/n − x̂·Σ(g·x̂)/n); running statistics don't depend on z: γ/σ·g.
static NormBack norm_back(const Pass& p, const Op& op, int c) {
    const Statistics s = statistics(p, op);
    const float n = p.samples_per_channel(p.tensor(op.in).value);
    const float a = (op.weight < 0 ? 1.f : p.row[op.weight + c]) * s.inverse[c];
    if (p.mode == Mode::running) return {all(a), V{}, V{}, V{}};
    return {all(a), all(-a * s.inverse[c] * s.sum_hat[c] / n), all(-a * s.sum[c] / n), all(s.mean[c])};
}

static void backward_norm(const Pass& p, const Op& op, float* gradient) {
    const Statistics s = statistics(p, op);
    auto forward = [&](int c) { return affine(p, op, s, c); };
    norm_gradients(p, op, gradient,
                   [&](int b, int c, V, V inverse) { return norm_sums(p, op, b, c, inverse, forward(c)); });
    for (int b = 0; op.copy_other && b < p.blocks; b++) copy_gradient(p, op.out, op.other, b);
    if (!op.input_gradient) return;
    for (int b = 0; b < p.blocks; b++)
        backward_norm_rows(p, op, b, [&](int c) { return norm_back(p, op, c); }, forward);
}

static void backward_norm_relu_pool(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const Geometry &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const size_t below = size_t(gi.columns()) * LANES;
    norm_gradients(p, op, gradient, [&](int b, int c, V mean, V inverse) {
        V plain{}, hat{};
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
        for (int y = 0; y < go.height; y++) {
            const float *t = z + gi.at(c, 2 * y, 0) * LANES, *up = g + ho.at(c, y, 0) * LANES;
            for (int x = 0; x < go.width;
                 x++, t += 2 * LANES, up += LANES, codes += LANES) {
                I code = get_code(codes);
                V chosen = select(code == 1, load(t + LANES), load(t));
                chosen = select(code == 2, load(t + below), chosen);
                chosen = select(code == 3, load(t + below + LANES), chosen);
                const V own = select(code < 4, load(up), V{});
                plain += own;
                hat += own * ((chosen - mean) * inverse);
            }
        }
        return ChannelSums{plain, hat};
    });
    if (!op.input_gradient) return;
    for (int b = 0; b < p.blocks; b++) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        float* out = p.grad(op.in, b);
        const V live = p.live(b);
        for (int c = 0; c < gi.channels; c++) {
            const NormBack n = norm_back(p, op, c);
            const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
            const size_t next = size_t(hi.columns()) * LANES;
            for (int y = 0; y < go.height; y++) {
                const float *t = z + gi.at(c, 2 * y, 0) * LANES, *gp = g + ho.at(c, y, 0) * LANES;
                float* to = out + hi.at(c, 2 * y, 0) * LANES;
                for (int x = 0; x < go.width;
                     x++, t += 2 * LANES, gp += LANES, to += 2 * LANES, codes += LANES) {
                    const V up = n.a * load(gp);
                    const I code = get_code(codes);
                    auto back = [&](int q, size_t at) {
                        return select(code == q, up, V{}) + n.rest(load(t + at)) * live;
                    };
                    store(to, back(0, 0));
                    store(to + LANES, back(1, LANES));
                    store(to + next, back(2, below));
                    store(to + next + LANES, back(3, below + LANES));
                }
            }
            for (int y = 0; y < gi.height; y++)  // an odd last row or column is in no window
                for (int x = y < 2 * go.height ? 2 * go.width : 0; x < gi.width; x++)
                    store(out + hi.at(c, y, x) * LANES, n.rest(load(z + gi.at(c, y, x) * LANES)) * live);
        }
    }
}

}  // namespace WECFL_ISA
