// Convolutions of any kernel, stride, padding, dilation and number of groups, by lists of taps: the planner
// wrote down where each product of a pixel reads. The gradient of the input is the same loop over other taps:
// pixels a stride apart read the same ones, so that no product with a zero between strides is made.
#pragma once
#include "conv_loops.h"
#include "pass.h"

namespace WECFL_ISA {

inline constexpr int TAP_COLUMNS = LANES_16 ? 4 : 3;  // beside 4 channels: AVX-512 has 32 registers, AVX2 16

// Pixels (rows × columns, `row` and `step` floats apart where they are read) of `outputs` channels.
struct TapGrid {
    int outputs, rows, columns;
    size_t row, step;
};

// *place(o, x) = bias[o] + Σ_k in[x + offset k] · w[o][k]; `more` as in taps_pixels.
template <int OB, int XB, class Place>
INLINE void taps_tile(const Taps& taps, const float* in, size_t step, const float* w, const float* bias,
                      ptrdiff_t more, Place place) {
    if (more)
        EACH(p, OB)
            EACH(q, XB) __builtin_prefetch(place(p, q) + more);
    V acc[OB][XB];
    EACH(p, OB)
        EACH(q, XB) acc[p][q] = all(bias ? bias[p] : 0.f);
    for (int k = 0; k < taps.count; k++) {
        const float* from = in + ptrdiff_t(taps.offsets[k]) * LANES;
        V u[XB];
        EACH(q, XB) u[q] = load(from + q * step);
        EACH(p, OB) {
            const V weight = all(w[size_t(p) * taps.count + k]);
            EACH(q, XB) acc[p][q] += u[q] * weight;
        }
    }
    EACH(p, OB)
        EACH(q, XB) {
            float* to = place(p, q);
            store(to, more ? acc[p][q] + load(to + more) : acc[p][q]);
        }
}

// All outputs o, y, x to their places; what lies `more` floats behind a place is added to it (0: nothing).
template <class Place>
static void taps_pixels(const Taps& taps, const TapGrid& g, const float* in, const float* w,
                        const float* bias, ptrdiff_t more, Place place) {
    // Rows outside: what a row reads stays in a cache, which a whole plane of many channels does not.
    for (int y = 0; y < g.rows; y++) {
        int o = 0;
        auto channels = [&](auto ob, auto xb) {
            constexpr int OB = decltype(ob)::value, XB = decltype(xb)::value;
            in_tiles<XB>(g.columns, [&](int x, auto size) {
                taps_tile<OB, decltype(size)::value>(
                    taps, in + y * g.row + x * g.step, g.step, w + size_t(o) * taps.count,
                    bias ? bias + o : nullptr, more, [&](int p, int q) { return place(o + p, y, x + q); });
            });
            o += OB;
        };
        while (g.outputs - o >= 4) channels(Constant<4>{}, Constant<TAP_COLUMNS>{});
        while (o < g.outputs) channels(Constant<1>{}, Constant<6>{});
    }
}

// gradient[o][k] += Σ_pixels Σ_lanes grad[o][pixel] · in[pixel + offset k] for OB outputs and TB taps. Lanes are added up
// at once: a vector for each weight would not fit in a cache.
template <int OB, int TB>
INLINE void taps_weights_tile(const TapGrid& g, const int32_t* offsets, const float* in, const float* grad,
                              size_t grad_plane, size_t grad_row, float* gradient, size_t per_output) {
    constexpr int N = OB * TB, SQUARES_OF_LANES = (N + LANES - 1) / LANES;
    V acc[SQUARES_OF_LANES * LANES] = {};
    const float* tap[TB];
    EACH(t, TB) tap[t] = in + ptrdiff_t(offsets[t]) * LANES;
    for (int y = 0; y < g.rows; y++) {
        size_t at = y * g.row;
        const float* up = grad + y * grad_row;
        for (int x = 0; x < g.columns; x++, at += g.step, up += LANES) {
            V d[OB];
            EACH(p, OB) d[p] = load(up + p * grad_plane);
            EACH(t, TB) {
                const V u = load(tap[t] + at);
                EACH(p, OB) acc[p * TB + t] += d[p] * u;
            }
        }
    }
    alignas(64) float sums[SQUARES_OF_LANES * LANES];
    if constexpr (N > 4)
        EACH(n, SQUARES_OF_LANES) store(sums + n * LANES, lane_sums(acc + n * LANES));
    else
        EACH(n, N) sums[n] = sum(acc[n]);
    EACH(p, OB)
        EACH(t, TB) gradient[p * per_output + t] += sums[p * TB + t];
}

static void taps_weights(const Taps& taps, TapGrid g, const float* in, const float* grad, size_t grad_plane,
                         size_t grad_row, float* gradient) {
    const int rows = g.rows, band = g.columns < 64 ? 64 / g.columns : 1;  // so that a band stays in the first cache
    for (int y = 0; y < rows; y += band) {
        g.rows = rows - y < band ? rows - y : band;
        const float *from = in + y * g.row, *up = grad + y * grad_row;
        int o = 0;
        auto outputs = [&](auto ob, auto tb) {
            constexpr int OB = decltype(ob)::value, TB = decltype(tb)::value;
            int k = 0;
            auto tile = [&](auto size) {
                constexpr int N = decltype(size)::value;
                taps_weights_tile<OB, N>(g, taps.offsets + k, from, up + o * grad_plane, grad_plane, grad_row,
                                         gradient + size_t(o) * taps.count + k, taps.count);
                k += N;
            };
            while (taps.count - k >= TB) tile(Constant<TB>{});
            if constexpr (TB > 3)
                while (taps.count - k >= 3) tile(Constant<3>{});
            while (k < taps.count) tile(Constant<1>{});
            o += OB;
        };
        while (g.outputs - o >= 4) outputs(Constant<4>{}, Constant<LANES_16 ? 4 : 3>{});
        while (o < g.outputs) outputs(Constant<1>{}, Constant<9>{});
    }
}

static void forward_any_conv(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const AnyConv& conv = *op.any;
    const TapGrid grid{conv.outputs, go.height, go.width, size_t(gi.columns()) * op.stride.y * LANES,
                       size_t(op.stride.x) * LANES};
    float* out = p.value(op.out, b);
    for (int g = 0; g < conv.groups; g++) {
        const int first = g * conv.outputs;
        taps_pixels(conv.taps, grid, p.value(op.in, b) + g * conv.inputs * gi.plane() * LANES,
                    p.row + op.weight + size_t(first) * conv.taps.count,
                    op.bias < 0 ? nullptr : p.row + op.bias + first, 0,
                    [&](int o, int y, int x) { return out + go.at(first + o, y, x) * LANES; });
    }
}

// Whether a convolution of the same stride reads these pixels of its input.
static bool reaches(const Op& op, const Phase& pixels) {
    const AnyConv& conv = *op.any;
    for (int n = 0; n < conv.phase_count; n++) {
        const Phase& own = conv.phases[n];
        if ((own.first.y - pixels.first.y) % op.stride.y == 0 && (own.first.x - pixels.first.x) % op.stride.x == 0)
            return own.taps.count > 0;
    }
    return false;
}

static void backward_any_conv(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &hi = p.tensor(op.in).grad, &ho = p.tensor(op.out).grad;
    const AnyConv& conv = *op.any;
    const float* up = p.grad(op.out, b);
    const TapGrid grid{conv.outputs, ho.height, ho.width, size_t(gi.columns()) * op.stride.y * LANES,
                       size_t(op.stride.x) * LANES};
    for (int g = 0; g < conv.groups; g++)
        taps_weights(conv.taps, grid, p.value(op.in, b) + g * conv.inputs * gi.plane() * LANES,
                     up + ho.at(g * conv.outputs, 0, 0) * LANES, ho.plane() * LANES,
                     size_t(ho.columns()) * LANES,
                     p.gradient + op.weight + size_t(g) * conv.outputs * conv.taps.count);
    if (op.bias >= 0) add_channel_sums(ho, up, p.partial + op.partial_at * LANES);
    if (!op.input_gradient) return;
    float* out = p.grad(op.in, b);
    const Op* further = nullptr;
    for (int i = 0; op.adds >= 0 && i < p.net.op_count && !further; i++)
        if (p.net.ops[i].in == op.adds && p.net.ops[i].only_reached) further = p.net.ops + i;
    const size_t weights = size_t(conv.outputs) * conv.taps.count;  // of a group
    for (int n = 0; n < conv.phase_count; n++) {
        const Phase& phase = conv.phases[n];
        if (op.only_reached && !phase.taps.count) continue;
        const ptrdiff_t more = op.adds >= 0 && (!further || reaches(*further, phase)) ? p.grad(op.adds, b) - out : 0;
        const TapGrid pixels{conv.inputs, phase.count.y, phase.count.x, size_t(ho.columns()) * LANES, LANES};
        for (int g = 0; g < conv.groups; g++)
            taps_pixels(phase.taps, pixels,
                        up + (g * conv.outputs * ho.plane() + phase.start) * LANES,
                        p.flipped + op.flipped_at + g * weights + phase.weights_at, nullptr, more,
                        [&](int c, int y, int x) {
                            return out + hi.at(g * conv.inputs + c, phase.first.y + y * op.stride.y,
                                               phase.first.x + x * op.stride.x) * LANES;
                        });
    }
}

}  // namespace WECFL_ISA
