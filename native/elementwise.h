// Layers that work on each number by itself: ReLU, other activations and Dropout; additions and copies.
#pragma once
#include "pass.h"
#include "vector_math.h"

namespace WECFL_ISA {

static void forward_relu(const Pass& p, const Op& op, int b) {
    map(p.tensor(op.in).value, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b),
        [](V v, int, int, int) { return positive(v); });
}

static void backward_relu(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &hi = p.tensor(op.in).grad, &ho = p.tensor(op.out).grad;
    const float *y = p.value(op.out, b), *g = p.grad(op.out, b);
    float* out = p.grad(op.in, b);
    for (int c = 0; c < go.channels; c++)
        pixels(go, c, [&](int i, int j, size_t at) {
            store(out + hi.at(c, i, j) * LANES,
                  select(load(y + at) > 0, load(g + ho.at(c, i, j) * LANES), V{}));
        });
}

static V normal_share(V z) { return .5f + .5f * erf_of(z * .70710678118654752f); }  // of N(0, 1) below z
static V gelu_angle(V z) { return .79788456080286536f * (z + .044715f * z * z * z); }

static V activated(const Op& op, V z) {
    switch (op.function) {
        case Function::leaky_relu:
            return select(z > 0, z, z * op.rate);
        case Function::elu:
            return select(z > 0, z, op.rate * expm1_of(z));
        case Function::sigmoid:
            return sigmoid_of(z);
        case Function::tanh:
            return tanh_of(z);
        case Function::silu:
            return z * sigmoid_of(z);
        case Function::gelu:
            return z * normal_share(z);
        default:
            return .5f * z * (1.f + tanh_of(gelu_angle(z)));
    }
}

// The derivative at z, where the function is y.
static V slope(const Op& op, V z, V y) {
    switch (op.function) {
        case Function::leaky_relu:
            return select(z > 0, all(1.f), all(op.rate));
        case Function::elu:
            return select(z > 0, all(1.f), op.rate * exp_of(z));
        case Function::sigmoid:
            return y * (1.f - y);
        case Function::tanh:
            return 1.f - y * y;
        case Function::silu: {
            const V s = sigmoid_of(z);
            return s * (1.f + z * (1.f - s));
        }
        case Function::gelu:
            return normal_share(z) + z * exp_of(-.5f * z * z) * .39894228040143268f;
        default: {
            const V t = tanh_of(gelu_angle(z));
            return .5f * (1.f + t) +
                   .5f * z * (1.f - t * t) * .79788456080286536f * (1.f + .134145f * z * z);
        }
    }
}

static void forward_activation(const Pass& p, const Op& op, int b) {
    map(p.tensor(op.in).value, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b),
        [&](V v, int, int, int) { return activated(op, v); });
}

static void backward_activation(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value, &hi = p.tensor(op.in).grad,
                   &ho = p.tensor(op.out).grad;
    const float *z = p.value(op.in, b), *result = p.value(op.out, b), *g = p.grad(op.out, b);
    float* out = p.grad(op.in, b);
    for (int c = 0; c < gi.channels; c++)
        pixels(gi, c, [&](int y, int x, size_t at) {
            const V own = slope(op, load(z + at), load(result + go.at(c, y, x) * LANES));
            store(out + hi.at(c, y, x) * LANES, own * load(g + ho.at(c, y, x) * LANES));
        });
}

static void forward_add(const Pass& p, const Op& op, int b) {
    const Geometry& go = p.tensor(op.other).value;
    const float* other = p.value(op.other, b);
    map(p.tensor(op.in).value, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b), [&](V v, int c, int y, int x) {
        v += load(other + go.at(c, y, x) * LANES);
        return op.relu ? positive(v) : v;
    });
}

// The gradient of a sum is that of both its inputs: most of the time they share its memory, and there is
// nothing to do.
static void backward_add(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad;
    float* g = p.grad(op.out, b);
    if (op.relu) {
        const float* result = p.value(op.out, b);
        map(ho, g, ho, g, [&](V v, int c, int y, int x) {
            return select(load(result + go.at(c, y, x) * LANES) > 0, v, V{});
        });
    }
    if (op.copy_in) copy_gradient(p, op.out, op.in, b);
    if (op.copy_other) copy_gradient(p, op.out, op.other, b);
}

// Where the part of a larger tensor that begins at (op.channel, 0, op.column) has its entry (c, y, x).
static size_t in_part(const Op& op, const Geometry& whole, int c, int y, int x) {
    return whole.at(op.channel + c, y, op.column + x) * LANES;
}

static void forward_place(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* from = p.value(op.in, b);
    float* to = p.value(op.out, b);
    for (int c = 0; c < gi.channels; c++)
        pixels(gi, c, [&](int y, int x, size_t at) { store(to + in_part(op, go, c, y, x), load(from + at)); });
}

static void backward_place(const Pass& p, const Op& op, int b) {
    const Geometry &hi = p.tensor(op.in).grad, &ho = p.tensor(op.out).grad;
    const float* from = p.grad(op.out, b);
    float* to = p.grad(op.in, b);
    for (int c = 0; c < hi.channels; c++)
        pixels(hi, c, [&](int y, int x, size_t at) { store(to + at, load(from + in_part(op, ho, c, y, x))); });
}

// Adds the gradient of a further reader to that of the tensor.
static void backward_fork(const Pass& p, const Op& op, int b) {
    const Geometry &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    float* to = p.grad(op.in, b);
    map(ho, p.grad(op.out, b), hi, to,
        [&](V v, int c, int y, int x) { return v + load(to + hi.at(c, y, x) * LANES); });
}

// A number in [0, 1) with 24 random bits, by splitmix64.
static float random_unit(uint64_t key, uint64_t counter) {
    uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return float((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

static void forward_dropout(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    uint8_t* mask = p.code(op, b);
    const float keep = 1.f / (1.f - op.rate);
    size_t number = 0;
    map(gi, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b), [&](V v, int, int, int) {
        if (p.mode != Mode::train) return v;
        const size_t e = number++;
        V kept = {};
        for (int i = 0; i < LANES; i++) {
            const size_t sample = size_t(p.batch.before) + size_t(b) * LANES + i,
                         elements = size_t(gi.channels) * gi.height * gi.width;
            const bool yes = random_unit(p.key ^ (op.codes_at << 40), sample * elements + e) >= op.rate;
            mask[e * LANES + i] = yes;
            kept[i] = yes ? keep : 0.f;
        }
        return v * kept;
    });
}

static void backward_dropout(const Pass& p, const Op& op, int b) {
    const uint8_t* mask = p.code(op, b);
    const float keep = 1.f / (1.f - op.rate);
    map(p.tensor(op.out).grad, p.grad(op.out, b), p.tensor(op.in).grad, p.grad(op.in, b),
        [&](V g, int, int, int) {
            if (p.mode != Mode::train) return g;
            const I kept = get_code(mask) != 0;
            mask += LANES;
            return select(kept, g * keep, V{});
        });
}

}  // namespace WECFL_ISA
