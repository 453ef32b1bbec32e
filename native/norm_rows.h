// What BatchNorm and GroupNorm share: both are an affine map of each channel, whose numbers are the same for all
// samples (BatchNorm) or differ from lane to lane (GroupNorm). Behind it, in the same pass, another tensor may
// be added and ReLU applied.
#pragma once
#include "pass.h"

namespace WECFL_ISA {

// (z − mean)·scale + shift: subtracting first keeps the digits of a channel far from zero.
struct Affine {
    V mean, scale, shift;
    V operator()(V z) const { return (z - mean) * scale + shift; }
};

// ∂z = a·g + b·(z − mean) + d
struct NormBack {
    V a, b, d, mean;
    V rest(V z) const { return b * (z - mean) + d; }
};

struct ChannelSums {
    V plain, hat;  // Σg, Σg·x̂
};

// `affine(c)` is the map of channel c.
template <class Map>
static void forward_norm_rows(const Pass& p, const Op& op, int b, Map affine) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const Geometry& gx = p.tensor(op.other < 0 ? op.in : op.other).value;
    const float *z = p.value(op.in, b), *other = op.other < 0 ? nullptr : p.value(op.other, b);
    float* out = p.value(op.out, b);
    for (int c = 0; c < gi.channels; c++) {
        const Affine f = affine(c);
        for (int y = 0; y < gi.height; y++) {
            const float *from = z + gi.at(c, y, 0) * LANES, *more = other + gx.at(c, y, 0) * LANES;
            float* to = out + go.at(c, y, 0) * LANES;
            for (int x = 0; x < gi.width * LANES; x += LANES) {
                fetch_ahead(to + x);
                if (other) fetch_ahead(more + x);
                V v = f(load(from + x));
                if (other) v += load(more + x);
                store(to + x, op.relu ? positive(v) : v);
            }
        }
    }
}

// Σg and Σg·x̂ of channel c of a block, `forward` being its map. ReLU's mask follows from the input, which is read anyway.
// Behind an addition it follows from the output and is written into the gradient as well, because the other tensor gets
// the same one.
static ChannelSums norm_sums(const Pass& p, const Op& op, int b, int c, V inverse, const Affine& forward) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad;
    V plain{}, hat{};
    for (int y = 0; y < gi.height; y++) {
        const float *z = p.value(op.in, b) + gi.at(c, y, 0) * LANES,
                    *result = p.value(op.out, b) + go.at(c, y, 0) * LANES;
        float* up = p.grad(op.out, b) + ho.at(c, y, 0) * LANES;
        for (int x = 0; x < gi.width * LANES; x += LANES) {
            fetch_ahead(z + x), fetch_ahead(up + x);
            if (op.masks()) fetch_ahead(result + x);
            const V v = load(z + x);
            V g = load(up + x);
            if (op.relu) g = select((op.masks() ? load(result + x) : forward(v)) > 0, g, V{});
            if (op.masks()) store(up + x, g);
            plain += g;
            hat += g * ((v - forward.mean) * inverse);
        }
    }
    return {plain, hat};
}

// The gradient of the input of block b; `back(c)` is the map of channel c, and `forward(c)` that of the forward pass.
template <class Back, class Forward>
static void backward_norm_rows(const Pass& p, const Op& op, int b, Back back, Forward forward) {
    const Geometry& gi = p.tensor(op.in).value;
    const Geometry &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const bool masked = op.relu && !op.masks();
    const V live = p.live(b);
    for (int c = 0; c < gi.channels; c++) {
        const NormBack n = back(c);
        const Affine f = forward(c);
        for (int y = 0; y < gi.height; y++) {
            const float *z = p.value(op.in, b) + gi.at(c, y, 0) * LANES,
                        *up = p.grad(op.out, b) + ho.at(c, y, 0) * LANES;
            float* to = p.grad(op.in, b) + hi.at(c, y, 0) * LANES;
            for (int x = 0; x < gi.width * LANES; x += LANES) {
                fetch_ahead(to + x);
                const V v = load(z + x);
                V g = load(up + x);
                if (masked) g = select(f(v) > 0, g, V{});
                store(to + x, (n.a * g + n.rest(v)) * live);
            }
        }
    }
}

}  // namespace WECFL_ISA
