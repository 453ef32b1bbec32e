// BatchNorm, alone and with ReLU and a 2 × 2 maximum after it. It looks at all blocks of a batch at once.
#pragma once
#include <cmath>

#include "pass.h"
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
            pixels(g, c, [&](int, int, size_t at) { acc += load(z + at); });
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

// (z − mean)·scale + shift: subtracting first keeps the digits of a channel far from zero.
struct Affine {
    V mean, scale, shift;
    V operator()(V z) const { return (z - mean) * scale + shift; }
};
INLINE Affine affine(const Pass& p, const Op& op, const Statistics& s, int c) {
    const float weight = op.weight < 0 ? 1.f : p.row[op.weight + c];
    return {all(s.mean[c]), all(weight * s.inverse[c]), all(op.bias < 0 ? 0.f : p.row[op.bias + c])};
}

static void forward_norm(const Pass& p, const Op& op, int b) {
    const Statistics s = statistics(p, op);
    map(p.tensor(op.in).value, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b),
        [&](V v, int c, size_t) { return affine(p, op, s, c)(v); });
}

static void forward_norm_relu_pool(const Pass& p, const Op& op, int b) {
    const Statistics s = statistics(p, op);
    forward_pool2(p, op, b, [&](int c) { return affine(p, op, s, c); });
}

// Σg and Σg·x̂ of a BatchNorm, and so its own gradients; `upstream(b, c, f)` calls f(g, z) for every
// pixel that has a gradient.
template <class Upstream>
static void norm_sums(const Pass& p, const Op& op, float* gradient, Upstream upstream) {
    const Geometry& gi = p.tensor(op.in).value;
    const Statistics s = statistics(p, op);
    for (int c = 0; c < gi.channels; c++) {
        double total = 0, total_hat = 0;
        const V mean = all(s.mean[c]), inverse = all(s.inverse[c]);
        for (int b = 0; b < p.blocks; b++) {
            V acc = {}, acc_hat = {};
            upstream(b, c, [&](V g, V z) {
                acc += g;
                acc_hat += g * ((z - mean) * inverse);
            });
            total += sum(acc), total_hat += sum(acc_hat);
        }
        s.sum[c] = float(total), s.sum_hat[c] = float(total_hat);
        if (op.bias >= 0) gradient[op.bias + c] = s.sum[c];
        if (op.weight >= 0) gradient[op.weight + c] = s.sum_hat[c];
    }
}

// ∂z = γ/σ·(g − Σg/n − x̂·Σ(g·x̂)/n), as a·g + rest(z); running statistics don't depend on z: γ/σ·g.
struct NormBack {
    V a, b, d, mean;
    V rest(V z) const { return b * (z - mean) + d; }
};
static NormBack norm_back(const Pass& p, const Op& op, int c) {
    const Statistics s = statistics(p, op);
    const float n = p.samples_per_channel(p.tensor(op.in).value);
    const float a = (op.weight < 0 ? 1.f : p.row[op.weight + c]) * s.inverse[c];
    if (p.mode == Mode::running) return {all(a), V{}, V{}, V{}};
    return {all(a), all(-a * s.inverse[c] * s.sum_hat[c] / n), all(-a * s.sum[c] / n), all(s.mean[c])};
}

static void backward_norm(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    norm_sums(p, op, gradient, [&](int b, int c, auto f) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        pixels(gi, c, [&](int y, int x, size_t at) { f(load(g + ho.at(c, y, x) * LANES), load(z + at)); });
    });
    for (int b = 0; b < p.blocks; b++) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        float* out = p.grad(op.in, b);
        const V live = p.live(b);
        for (int c = 0; c < gi.channels; c++) {
            const NormBack n = norm_back(p, op, c);
            pixels(gi, c, [&](int y, int x, size_t at) {
                V v = n.a * load(g + ho.at(c, y, x) * LANES) + n.rest(load(z + at));
                store(out + hi.at(c, y, x) * LANES, v * live);
            });
        }
    }
}

static void backward_norm_relu_pool(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const Geometry &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const size_t below = size_t(gi.columns()) * LANES;
    norm_sums(p, op, gradient, [&](int b, int c, auto f) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
        for (int y = 0; y < go.height; y++) {
            const float *t = z + gi.at(c, 2 * y, 0) * LANES, *up = g + ho.at(c, y, 0) * LANES;
            for (int x = 0; x < go.width;
                 x++, t += 2 * LANES, up += size_t(ho.step) * LANES, codes += LANES) {
                I code = get_code(codes);
                V chosen = select(code == 1, load(t + LANES), load(t));
                chosen = select(code == 2, load(t + below), chosen);
                chosen = select(code == 3, load(t + below + LANES), chosen);
                f(select(code < 4, load(up), V{}), chosen);
            }
        }
    });
    for (int b = 0; b < p.blocks; b++) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        float* out = p.grad(op.in, b);
        const V live = p.live(b);
        for (int c = 0; c < gi.channels; c++) {
            const NormBack n = norm_back(p, op, c);
            const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
            const size_t step = size_t(hi.step) * LANES, next = size_t(hi.columns()) * step;
            for (int y = 0; y < go.height; y++) {
                const float *t = z + gi.at(c, 2 * y, 0) * LANES, *gp = g + ho.at(c, y, 0) * LANES;
                float* to = out + hi.at(c, 2 * y, 0) * LANES;
                for (int x = 0; x < go.width;
                     x++, t += 2 * LANES, gp += size_t(ho.step) * LANES, to += 2 * step, codes += LANES) {
                    const V up = n.a * load(gp);
                    const I code = get_code(codes);
                    auto back = [&](int q, size_t at) {
                        return select(code == q, up, V{}) + n.rest(load(t + at)) * live;
                    };
                    store(to, back(0, 0));
                    store(to + step, back(1, LANES));
                    store(to + next, back(2, below));
                    store(to + next + step, back(3, below + LANES));
                }
            }
            for (int y = 0; y < gi.height; y++)  // an odd last row or column is in no window
                for (int x = y < 2 * go.height ? 2 * go.width : 0; x < gi.width; x++)
                    store(out + hi.at(c, y, x) * LANES, n.rest(load(z + gi.at(c, y, x) * LANES)) * live);
        }
    }
}

}  // namespace WECFL_ISA
