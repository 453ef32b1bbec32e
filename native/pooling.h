// Pooling by maximum and by mean, and ReLU with a 2 × 2 maximum in one.
#pragma once
#include <cmath>

#include "pass.h"

namespace WECFL_ISA {

// Which of four neighbours is the largest (the first of equals, as in torch), 4 if none is positive.
struct Winner {
    V best;
    I code;
};
INLINE Winner winner(V a, V b, V c, V d) {
    V best = a;
    I code = {};
    auto challenge = [&](V v, int number) {
        I wins = v > best;
        best = select(wins, v, best);
        code = wins ? I{} + number : code;
    };
    challenge(b, 1), challenge(c, 2), challenge(d, 3);
    I alive = best > 0;
    return {select(alive, best, V{}), alive ? code : I{} + 4};
}

// ReLU and a 2 × 2 maximum of the inputs, each of which goes through `before(channel)` first.
template <class Before>
static void forward_pool2(const Pass& p, const Op& op, int b, Before before) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* z = p.value(op.in, b);
    float* out = p.value(op.out, b);
    uint8_t* codes = p.code(op, b);
    const size_t below = size_t(gi.columns()) * LANES;
    for (int c = 0; c < go.channels; c++) {
        const auto f = before(c);
        for (int y = 0; y < go.height; y++) {
            const float* t = z + gi.at(c, 2 * y, 0) * LANES;
            float* to = out + go.at(c, y, 0) * LANES;
            for (int x = 0; x < go.width; x++, t += 2 * LANES, to += LANES, codes += LANES) {
                auto in = [&](size_t at) { return f(load(t + at)); };
                Winner w = winner(in(0), in(LANES), in(below), in(below + LANES));
                store(to, w.best);
                put_code(codes, w.code);
            }
        }
    }
}

static void forward_relu_pool(const Pass& p, const Op& op, int b) {
    forward_pool2(p, op, b, [](int) { return [](V z) { return z; }; });
}

// The part of a window that lies inside of the input: rows and columns [from, to).
struct Window {
    int y, x;  // where it begins, before the padding is cut off
    int from_y, to_y, from_x, to_x;
    // How many numbers a mean is taken over. Behind the padding there is nothing, even if a window reaches there.
    int count(const Op& op, const Geometry& g) const {
        if (op.kind == Kind::adaptive_pool || !op.count_padding) return (to_y - from_y) * (to_x - from_x);
        auto side = [](int begin, int kernel, int size, int pad) {
            return (begin + kernel < size + pad ? begin + kernel : size + pad) - begin;
        };
        return side(y, op.kernel.y, g.height, op.pad.y) * side(x, op.kernel.x, g.width, op.pad.x);
    }
};
static Window window(const Op& op, const Geometry& in, const Geometry& out, int y, int x) {
    auto inside = [](int v, int size) { return v < 0 ? 0 : v > size ? size : v; };
    Window w;
    Sides end;
    if (op.kind == Kind::adaptive_pool) {
        w.y = int(int64_t(y) * in.height / out.height), w.x = int(int64_t(x) * in.width / out.width);
        end = {int((int64_t(y + 1) * in.height + out.height - 1) / out.height),
               int((int64_t(x + 1) * in.width + out.width - 1) / out.width)};
    } else {
        w.y = y * op.stride.y - op.pad.y, w.x = x * op.stride.x - op.pad.x;
        end = {w.y + op.kernel.y, w.x + op.kernel.x};
    }
    w.from_y = inside(w.y, in.height), w.to_y = inside(end.y, in.height);
    w.from_x = inside(w.x, in.width), w.to_x = inside(end.x, in.width);
    return w;
}

static void forward_max_pool(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* in = p.value(op.in, b);
    float* out = p.value(op.out, b);
    uint8_t* codes = p.code(op, b);
    for (int c = 0; c < go.channels; c++)
        pixels(go, c, [&](int y, int x, size_t at) {
            const Window w = window(op, gi, go, y, x);
            V best = all(-INFINITY);
            I code = {};
            for (int yy = w.from_y; yy < w.to_y; yy++)
                for (int xx = w.from_x; xx < w.to_x; xx++) {
                    V v = load(in + gi.at(c, yy, xx) * LANES);
                    I wins = v > best;
                    best = select(wins, v, best);
                    code = wins ? I{} + ((yy - w.y) * op.kernel.x + xx - w.x) : code;
                }
            store(out + at, best);
            put_code(codes, code);
            codes += LANES;
        });
}

// Of an avg_pool or an adaptive_pool.
static void forward_mean_pool(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* in = p.value(op.in, b);
    float* out = p.value(op.out, b);
    for (int c = 0; c < go.channels; c++)
        pixels(go, c, [&](int y, int x, size_t at) {
            const Window w = window(op, gi, go, y, x);
            V total = {};
            for (int yy = w.from_y; yy < w.to_y; yy++) {
                V row = {};
                for (int xx = w.from_x; xx < w.to_x; xx++) row += load(in + gi.at(c, yy, xx) * LANES);
                total += row;
            }
            store(out + at, total * (1.f / w.count(op, gi)));
        });
}

static void backward_relu_pool(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const float* g = p.grad(op.out, b);
    float* out = p.grad(op.in, b);
    if (hi.height % 2 || hi.width % 2) clear(hi, out);
    const uint8_t* codes = p.code(op, b);
    const size_t next = size_t(hi.columns()) * LANES;
    for (int c = 0; c < go.channels; c++)
        for (int y = 0; y < go.height; y++) {
            const float* gp = g + ho.at(c, y, 0) * LANES;
            float* to = out + hi.at(c, 2 * y, 0) * LANES;
            for (int x = 0; x < go.width;
                 x++, gp += LANES, to += 2 * LANES, codes += LANES) {
                const V up = load(gp);
                const I code = get_code(codes);
                store(to, select(code == 0, up, V{}));
                store(to + LANES, select(code == 1, up, V{}));
                store(to + next, select(code == 2, up, V{}));
                store(to + next + LANES, select(code == 3, up, V{}));
            }
        }
}

// Of a max_pool, an avg_pool or an adaptive_pool.
static void backward_window(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const float* g = p.grad(op.out, b);
    float* out = p.grad(op.in, b);
    const bool max = op.kind == Kind::max_pool;
    clear(hi, out);
    const uint8_t* codes = p.code(op, b);
    for (int c = 0; c < go.channels; c++)
        for (int y = 0; y < go.height; y++)
            for (int x = 0; x < go.width; x++) {
                const Window w = window(op, hi, go, y, x);
                V up = load(g + ho.at(c, y, x) * LANES);
                I code = {};
                if (max) code = get_code(codes), codes += LANES;
                else up *= all(1.f / w.count(op, hi));
                for (int yy = w.from_y; yy < w.to_y; yy++)
                    for (int xx = w.from_x; xx < w.to_x; xx++) {
                        float* to = out + hi.at(c, yy, xx) * LANES;
                        const int own = (yy - w.y) * op.kernel.x + xx - w.x;
                        store(to, load(to) + (max ? select(code == own, up, V{}) : up));
                    }
            }
}

}  // namespace WECFL_ISA
