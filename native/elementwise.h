// Layers that work on each number by itself: ReLU and Dropout.
#pragma once
#include "pass.h"

namespace WECFL_ISA {

static void forward_relu(const Pass& p, const Op& op, int b) {
    map(p.tensor(op.in).value, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b),
        [](V v, int, size_t) { return positive(v); });
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
    map(gi, p.value(op.in, b), p.tensor(op.out).value, p.value(op.out, b), [&](V v, int, size_t e) {
        if (p.mode != Mode::train) return v;
        V kept = {};
        for (int i = 0; i < LANES; i++) {
            const size_t sample = size_t(b) * LANES + i,
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
        [&](V g, int, size_t e) {
            return p.mode != Mode::train ? g : select(get_code(mask + e * LANES) != 0, g * keep, V{});
        });
}

}  // namespace WECFL_ISA
