// Norms of single samples: GroupNorm (and so InstanceNorm) and LayerNorm. Mean and deviation of a group are
// vectors, one number for each lane.
#pragma once
#include <cmath>

#include "norm_rows.h"

namespace WECFL_ISA {

// Mean and 1/√(variance + ε) of group g of block b.
static float* moments(const Pass& p, const Op& op, int b, int g) {
    return p.moments + (op.moments_at * p.capacity + (size_t(b) * op.groups + g) * 2) * LANES;
}

// Rows are measured one by one around their own means and put together by Chan's formula: each number is read
// from memory once. The mean is the first row's and what all numbers are above it on average. Where they lie
// close together, x̂ has only the digits in which they differ, and a mean that is rounded with every row would
// lose some of these.
struct Moments {
    V mean{}, squares{}, first{}, above{};
    float count = 0;
    void add_row(const float* from, int width) {
        V total{}, rest{}, left{};
        for (int x = 0; x < width; x++) total += load(from + size_t(x) * LANES);
        const V own = total / float(width);
        for (int x = 0; x < width; x++) {
            const V d = load(from + size_t(x) * LANES) - own;
            left += d;
            rest += d * d;
        }
        if (!count) first = own;
        const float both = count + width, share = width / both;
        const V gap = own - mean;
        squares += rest + gap * gap * (count * share);
        above += (own - first) * float(width) + left;
        mean = first + above / both;
        count = both;
    }
    void write(float* to, float eps) const {
        store(to, mean);
        V inverse;
        for (int i = 0; i < LANES; i++) inverse[i] = 1.f / std::sqrt(squares[i] / count + eps);
        store(to + LANES, inverse);
    }
};

// Channels first … last − 1 of a value. A plane without a border is one long row.
static Moments measured(const Geometry& g, const float* value, int first, int last) {
    Moments m;
    if (!g.border) {
        const int count = int(g.plane()) * (last - first);
        const float* from = value + first * g.plane() * LANES;
        for (int at = 0; at < count; at += 32)
            m.add_row(from + size_t(at) * LANES, count - at < 32 ? count - at : 32);
        return m;
    }
    for (int c = first; c < last; c++)
        for (int y = 0; y < g.height; y++) m.add_row(value + g.at(c, y, 0) * LANES, g.width);
    return m;
}

static Affine group_affine(const Pass& p, const Op& op, int b, int c) {
    const float* m = moments(p, op, b, c / (p.tensor(op.in).value.channels / op.groups));
    return {load(m), load(m + LANES) * (op.weight < 0 ? 1.f : p.row[op.weight + c]),
            all(op.bias < 0 ? 0.f : p.row[op.bias + c])};
}

static void forward_group_norm(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const int size = gi.channels / op.groups;
    for (int g = 0; g < op.groups; g++)
        measured(gi, p.value(op.in, b), g * size, (g + 1) * size).write(moments(p, op, b, g), op.eps);
    forward_norm_rows(p, op, b, [&](int c) { return group_affine(p, op, b, c); });
}

// With S = Σγg and T = Σγg·x̂ of a group of n numbers: ∂z = 1/σ·(γg − S/n − x̂·T/n).
static void backward_group_norm(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const int size = gi.channels / op.groups;
    const float n = float(size) * gi.height * gi.width;
    float* partial = p.partial + op.partial_at * LANES;
    V plain{}, hat{};
    NormBack back{};
    auto weight = [&](int c) { return op.weight < 0 ? 1.f : p.row[op.weight + c]; };
    auto forward = [&](int c) { return group_affine(p, op, b, c); };
    auto sums_of_group = [&](int g) {
        const V mean = load(moments(p, op, b, g)), inverse = load(moments(p, op, b, g) + LANES);
        plain = hat = V{};
        for (int c = g * size; c < (g + 1) * size; c++) {
            const ChannelSums s = norm_sums(p, op, b, c, inverse, forward(c));
            plain += weight(c) * s.plain, hat += weight(c) * s.hat;
            auto add = [&](size_t at, V v) { store(partial + at * LANES, load(partial + at * LANES) + v); };
            if (op.weight >= 0) add(c, s.hat);
            if (op.bias >= 0) add(op.partial_weights + c, s.plain);
        }
        back = {inverse, -inverse * inverse * hat / n, -inverse * plain / n, mean};
    };
    // The sums of a group are taken when its first channel comes.
    if (!op.input_gradient)
        for (int g = 0; g < op.groups; g++) sums_of_group(g);
    else
        backward_norm_rows(
            p, op, b,
            [&](int c) {
                if (c % size == 0) sums_of_group(c / size);
                return NormBack{back.a * weight(c), back.b, back.d, back.mean};
            },
            forward);
    if (op.copy_other) copy_gradient(p, op.out, op.other, b);
}

// LayerNorm: a group is the whole sample or, by column, one row; every number of it has a weight and a bias.
// f(group, number in the group, c, y, x)
template <class F>
static void layer_norm_pixels(const Geometry& g, const Op& op, F f) {
    int group = 0, k = 0;
    for (int c = 0; c < g.channels; c++)
        for (int y = 0; y < g.height; y++) {
            for (int x = 0; x < g.width; x++, k++) f(group, k, c, y, x);
            if (op.by_column) group++, k = 0;
        }
}

static void forward_layer_norm(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* z = p.value(op.in, b);
    float* out = p.value(op.out, b);
    if (op.by_column) {
        for (int r = 0; r < op.groups; r++) {
            Moments m;
            m.add_row(z + gi.at(r / gi.height, r % gi.height, 0) * LANES, gi.width);
            m.write(moments(p, op, b, r), op.eps);
        }
    } else
        measured(gi, z, 0, gi.channels).write(moments(p, op, b, 0), op.eps);
    layer_norm_pixels(gi, op, [&](int r, int k, int c, int y, int x) {
        const float* m = moments(p, op, b, r);
        V v = (load(z + gi.at(c, y, x) * LANES) - load(m)) * load(m + LANES);
        if (op.weight >= 0) v = v * p.row[op.weight + k];
        if (op.bias >= 0) v = v + p.row[op.bias + k];
        store(out + go.at(c, y, x) * LANES, v);
    });
}

static void backward_layer_norm(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const float *z = p.value(op.in, b), *up = p.grad(op.out, b);
    float *out = p.grad(op.in, b), *partial = p.partial + op.partial_at * LANES;
    const float n = float(gi.channels) * gi.height * gi.width / op.groups;
    auto hat = [&](int r, int c, int y, int x) {
        const float* m = moments(p, op, b, r);
        return (load(z + gi.at(c, y, x) * LANES) - load(m)) * load(m + LANES);
    };
    auto weight = [&](int k) { return op.weight < 0 ? 1.f : p.row[op.weight + k]; };
    // Σγg and Σγg·x̂ of each group stand where its moments would be, behind them.
    auto sums = [&](int r) { return moments(p, op, b, r) + size_t(op.groups) * p.capacity * 2 * LANES; };
    for (int r = 0; r < op.groups; r++) store(sums(r), V{}), store(sums(r) + LANES, V{});
    layer_norm_pixels(gi, op, [&](int r, int k, int c, int y, int x) {
        const V g = load(up + ho.at(c, y, x) * LANES), h = hat(r, c, y, x);
        auto add = [](float* to, V v) { store(to, load(to) + v); };
        if (op.weight >= 0) add(partial + size_t(k) * LANES, g * h);
        if (op.bias >= 0) add(partial + (op.partial_weights + k) * LANES, g);
        add(sums(r), g * weight(k)), add(sums(r) + LANES, g * weight(k) * h);
    });
    if (!op.input_gradient) return;
    layer_norm_pixels(gi, op, [&](int r, int k, int c, int y, int x) {
        const V g = load(up + ho.at(c, y, x) * LANES) * weight(k);
        const V v = g - load(sums(r)) / n - hat(r, c, y, x) * load(sums(r) + LANES) / n;
        store(out + hi.at(c, y, x) * LANES, v * load(moments(p, op, b, r) + LANES));
    });
}

}  // namespace WECFL_ISA
