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

static void forward_max_pool(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* in = p.value(op.in, b);
    float* out = p.value(op.out, b);
    uint8_t* codes = p.code(op, b);
    for (int c = 0; c < go.channels; c++)
        pixels(go, c, [&](int y, int x, size_t at) {
            V best = all(-INFINITY);
            I code = {};
            for (int i = 0; i < op.kernel; i++)
                for (int j = 0; j < op.kernel; j++) {
                    const int yy = y * op.stride - op.pad + i, xx = x * op.stride - op.pad + j;
                    if (yy < 0 || xx < 0 || yy >= gi.height || xx >= gi.width) continue;
                    V v = load(in + gi.at(c, yy, xx) * LANES);
                    I wins = v > best;
                    best = select(wins, v, best);
                    code = wins ? I{} + (i * op.kernel + j) : code;
                }
            store(out + at, best);
            put_code(codes, code);
            codes += LANES;
        });
}

static void forward_avg_pool(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float *in = p.value(op.in, b), share = 1.f / (op.kernel * op.kernel);
    float* out = p.value(op.out, b);
    for (int c = 0; c < go.channels; c++)
        pixels(go, c, [&](int y, int x, size_t at) {
            V total = {};
            for (int i = 0; i < op.kernel; i++)
                for (int j = 0; j < op.kernel; j++) {
                    const int yy = y * op.stride - op.pad + i, xx = x * op.stride - op.pad + j;
                    if (yy >= 0 && xx >= 0 && yy < gi.height && xx < gi.width)
                        total += load(in + gi.at(c, yy, xx) * LANES);
                }
            store(out + at, total * share);
        });
}

static void backward_relu_pool(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const float* g = p.grad(op.out, b);
    float* out = p.grad(op.in, b);
    if (hi.height % 2 || hi.width % 2) clear(hi, out);
    const uint8_t* codes = p.code(op, b);
    const size_t step = size_t(hi.step) * LANES, next = size_t(hi.columns()) * step;
    for (int c = 0; c < go.channels; c++)
        for (int y = 0; y < go.height; y++) {
            const float* gp = g + ho.at(c, y, 0) * LANES;
            float* to = out + hi.at(c, 2 * y, 0) * LANES;
            for (int x = 0; x < go.width;
                 x++, gp += size_t(ho.step) * LANES, to += 2 * step, codes += LANES) {
                const V up = load(gp);
                const I code = get_code(codes);
                store(to, select(code == 0, up, V{}));
                store(to + step, select(code == 1, up, V{}));
                store(to + next, select(code == 2, up, V{}));
                store(to + next + step, select(code == 3, up, V{}));
            }
        }
}

// Of a max_pool or an avg_pool.
static void backward_window(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const float *g = p.grad(op.out, b), share = 1.f / (op.kernel * op.kernel);
    float* out = p.grad(op.in, b);
    clear(hi, out);
    const uint8_t* codes = p.code(op, b);
    for (int c = 0; c < go.channels; c++)
        for (int y = 0; y < go.height; y++)
            for (int x = 0; x < go.width; x++) {
                const V up = load(g + ho.at(c, y, x) * LANES);
                I code = {};
                if (op.kind == Kind::max_pool) code = get_code(codes), codes += LANES;
                for (int i = 0; i < op.kernel; i++)
                    for (int j = 0; j < op.kernel; j++) {
                        const int yy = y * op.stride - op.pad + i, xx = x * op.stride - op.pad + j;
                        if (yy < 0 || xx < 0 || yy >= hi.height || xx >= hi.width) continue;
                        float* to = out + hi.at(c, yy, xx) * LANES;
                        store(to, load(to) + (op.kind == Kind::avg_pool
                                                  ? up * share
                                                  : select(code == i * op.kernel + j, up, V{})));
                    }
            }
}

}  // namespace WECFL_ISA
