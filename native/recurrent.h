// GRU and LSTM. The products with the inputs of all steps are one linear map; then, step by step, the products with the
// last output run with all gates of a few units in registers, and the gates follow from them on the spot. Backwards
// the same, and the gradients of both matrices are sums over all steps.
#pragma once
#include "sequence.h"
#include "vector_math.h"

namespace WECFL_ISA {

inline constexpr int BLOCKS_AT_A_TIME = LANES_16 ? 2 : 1;  // 24 of 32 or 12 of 16 registers hold sums

// What a layer of so many units keeps of a block, as [step][feature][lane]; backwards, gradients take the place of the
// gates. `last` and `last_cell` are the gradients that a step gives to the one before it.
struct Kept {
    int units;
    float *gates, *more, *last, *last_cell;
    size_t gate() const { return size_t(units) * LANES; }  // from one gate to the next
};

// Unit u at step `now`, which comes after step `before` (−1: it is the first).
struct Moment {
    int now, before, u;
    size_t at(const Kept& k, int features) const { return (size_t(now) * features * k.units + u) * LANES; }
    size_t at_before(const Kept& k, int features) const { return (size_t(before) * features * k.units + u) * LANES; }
};

INLINE V sigmoid_slope(V y) { return y * (1.f - y); }
INLINE V tanh_slope(V y) { return 1.f - y * y; }

// r = σ(x_r + h_r), z = σ(x_z + h_z), n = tanh(x_n + r·h_n), h ← n + z·(h − n), where x and h are what the input and
// the last output give to a gate. `more` has h_n in its last third, and backwards the gradients of all h.
struct Gru {
    static constexpr int gates = 3, more = 3;

    // What the sums of gate g start with, where the input gave x and the inner bias is c.
    static V start(int g, V x, float c) { return g == 2 ? all(c) : x + c; }

    // The next output, from the sums of all gates and the last output.
    static V forward(const V* sums, const Kept& k, const Moment& m, V h) {
        float *gate = k.gates + m.at(k, 3), *inner = k.more + m.at(k, 3);
        const V r = sigmoid_of(sums[0]), z = sigmoid_of(sums[1]), n = tanh_of(load(gate + 2 * k.gate()) + r * sums[2]);
        store(gate, r), store(gate + k.gate(), z), store(gate + 2 * k.gate(), n);
        store(inner + 2 * k.gate(), sums[2]);
        return n + z * (h - n);
    }

    // From the gradient of the output: those of all sums, and what the last output gets beside them.
    static void backward(const Kept& k, const Moment& m, V h, V up) {
        float *gate = k.gates + m.at(k, 3), *inner = k.more + m.at(k, 3);
        const V r = load(gate), z = load(gate + k.gate()), n = load(gate + 2 * k.gate());
        const V dn = up * (1.f - z) * tanh_slope(n), dz = up * (h - n) * sigmoid_slope(z);
        const V dr = dn * load(inner + 2 * k.gate()) * sigmoid_slope(r);
        store(gate, dr), store(gate + k.gate(), dz), store(gate + 2 * k.gate(), dn);
        store(inner, dr), store(inner + k.gate(), dz), store(inner + 2 * k.gate(), dn * r);
        store(k.last + size_t(m.u) * LANES, up * z);
    }

    static float* inner_gradients(const Kept& k) { return k.more; }
};

// i = σ(a_i), f = σ(a_f), g = tanh(a_g), o = σ(a_o), c ← f·c + i·g, h = o·tanh(c). `more` has c and tanh(c).
struct Lstm {
    static constexpr int gates = 4, more = 2;

    static V start(int, V x, float c) { return x + c; }

    static V forward(const V* sums, const Kept& k, const Moment& m, V) {
        float *gate = k.gates + m.at(k, 4), *cell = k.more + m.at(k, 2);
        const V i = sigmoid_of(sums[0]), f = sigmoid_of(sums[1]), g = tanh_of(sums[2]), o = sigmoid_of(sums[3]);
        store(gate, i), store(gate + k.gate(), f), store(gate + 2 * k.gate(), g), store(gate + 3 * k.gate(), o);
        V c = i * g;
        if (m.before >= 0) c += f * load(k.more + m.at_before(k, 2));
        const V shown = tanh_of(c);
        store(cell, c), store(cell + k.gate(), shown);
        return o * shown;
    }

    static void backward(const Kept& k, const Moment& m, V, V up) {
        float *gate = k.gates + m.at(k, 4), *last_cell = k.last_cell + size_t(m.u) * LANES;
        const V i = load(gate), f = load(gate + k.gate()), g = load(gate + 2 * k.gate()), o = load(gate + 3 * k.gate());
        const V shown = load(k.more + m.at(k, 2) + k.gate()), c = m.before < 0 ? V{} : load(k.more + m.at_before(k, 2));
        const V dc = load(last_cell) + up * o * tanh_slope(shown);
        store(gate, dc * g * sigmoid_slope(i)), store(gate + k.gate(), dc * c * sigmoid_slope(f));
        store(gate + 2 * k.gate(), dc * i * tanh_slope(g)), store(gate + 3 * k.gate(), up * shown * sigmoid_slope(o));
        store(last_cell, dc * f);
        store(k.last + size_t(m.u) * LANES, V{});
    }

    static float* inner_gradients(const Kept& k) { return k.gates; }
};

template <class Cell>
static Kept kept_of(const Pass& p, const Op& op, int b) {
    const Geometry& go = p.tensor(op.out).value;
    const size_t step = go.size() * LANES;
    float* at = p.kept + (op.kept_at * p.capacity + op.kept_size * b) * LANES;
    float *more = at + step * Cell::gates, *last = more + step * Cell::more;
    return {go.width, at, more, last, last + size_t(go.width) * LANES};
}

// The inner weights in the order in which the loops read them. Forwards: for a few units at a time, all their gates
// for each input; backwards: a few inputs at a time for each gate of each unit. Units that are not there have zeros.
template <class Cell>
static void order_weights(const Pass& p, const Op& op, bool back) {
    constexpr int some = ROWS_AT_A_TIME / Cell::gates;
    const int units = p.tensor(op.out).value.width, rows = Cell::gates * units;
    const float* w = p.row + op.inner_weight;
    float* to = p.ordered + (back ? op.ordered_back_at : op.ordered_at);
    if (back) {
        for (int u = 0; u < units; u += ROWS_AT_A_TIME)
            for (int o = 0; o < rows; o++)
                for (int i = 0; i < ROWS_AT_A_TIME; i++) *to++ = u + i < units ? w[size_t(o) * units + u + i] : 0.f;
        return;
    }
    for (int u = 0; u < units; u += some)
        for (int k = 0; k < units; k++)
            for (int g = 0; g < Cell::gates; g++)
                for (int i = 0; i < some; i++) *to++ = u + i < units ? w[size_t(g * units + u + i) * units + k] : 0.f;
}

// Which step is the t-th, and which one was before it (−1: none).
static Moment moment(const Op& op, int steps, int t) {
    if (op.reverse) return {steps - 1 - t, t ? steps - t : -1, 0};
    return {t, t - 1, 0};
}

// NB blocks from b on through all steps.
template <class Cell, int NB>
static void forward_steps(const Pass& p, const Op& op, int b) {
    constexpr int some = ROWS_AT_A_TIME / Cell::gates;
    const Geometry& go = p.tensor(op.out).value;
    const int units = go.width, steps = go.height;
    float* out = p.value(op.out, b);
    const size_t out_block = go.size() * LANES;
    Kept kept[NB];
    for (int n = 0; n < NB; n++) kept[n] = kept_of<Cell>(p, op, b + n);
    for (int t = 0; t < steps; t++) {
        Moment m = moment(op, steps, t);
        const float* before = out + size_t(m.before < 0 ? 0 : m.before) * units * LANES;
        const float* w = p.ordered + op.ordered_at;
        for (int u = 0; u < units; u += some, w += size_t(ROWS_AT_A_TIME) * units) {
            V acc[ROWS_AT_A_TIME][NB];
            EACH(r, ROWS_AT_A_TIME) {
                const int g = r / some, unit = std::min(u + r % some, units - 1);
                const float bias = op.inner_bias < 0 ? 0.f : p.row[op.inner_bias + g * units + unit];
                EACH(n, NB)
                acc[r][n] = Cell::start(
                    g, load(kept[n].gates + ((size_t(m.now) * Cell::gates + g) * units + unit) * LANES), bias);
            }
            if (t) multiply<ROWS_AT_A_TIME, NB>(acc, units, before, out_block, w, 1, ROWS_AT_A_TIME);
            EACH(i, some) {
                if (u + i >= units) continue;
                m.u = u + i;
                EACH(n, NB) {
                    V sums[Cell::gates];
                    EACH(g, Cell::gates) sums[g] = acc[g * some + i][n];
                    const size_t at = n * out_block + size_t(m.u) * LANES;
                    const V h = t ? load(before + at) : V{};
                    store(out + size_t(m.now) * units * LANES + at, Cell::forward(sums, kept[n], m, h));
                }
            }
        }
    }
}

template <class Cell>
static void forward_recurrent(const Pass& p, const Op& op) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    for (int b = 0; b < p.blocks; b++)
        linear_steps(gi.height, gi.width, Cell::gates * go.width, p.value(op.in, b), p.row + op.weight, gi.width, 1,
                     op.bias < 0 ? nullptr : p.row + op.bias, kept_of<Cell>(p, op, b).gates);
    order_weights<Cell>(p, op, false);
    int b = 0;
    for (; b + BLOCKS_AT_A_TIME <= p.blocks; b += BLOCKS_AT_A_TIME) forward_steps<Cell, BLOCKS_AT_A_TIME>(p, op, b);
    if constexpr (BLOCKS_AT_A_TIME > 1)
        for (; b < p.blocks; b++) forward_steps<Cell, 1>(p, op, b);
}

template <class Cell, int NB>
static void backward_steps(const Pass& p, const Op& op, int b) {
    const Geometry& go = p.tensor(op.out).value;
    const int units = go.width, steps = go.height, rows = Cell::gates * units;
    const size_t block = op.kept_size * LANES;
    Kept kept[NB];
    for (int n = 0; n < NB; n++) {
        kept[n] = kept_of<Cell>(p, op, b + n);
        std::memset(kept[n].last, 0, 2 * kept[n].gate() * sizeof(float));
    }
    for (int t = steps - 1; t >= 0; t--) {
        Moment m = moment(op, steps, t);
        for (int n = 0; n < NB; n++)
            for (m.u = 0; m.u < units; m.u++) {
                const V up = load(p.grad(op.out, b + n) + m.at(kept[n], 1)) + load(kept[n].last + size_t(m.u) * LANES);
                const V h = t ? load(p.value(op.out, b + n) + m.at_before(kept[n], 1)) : V{};
                Cell::backward(kept[n], m, h, up);
            }
        if (!t) return;
        const float *w = p.ordered + op.ordered_back_at, *d = Cell::inner_gradients(kept[0]) + size_t(m.now) * rows * LANES;
        for (int u = 0; u < units; u += ROWS_AT_A_TIME, w += size_t(ROWS_AT_A_TIME) * rows) {
            V acc[ROWS_AT_A_TIME][NB];
            EACH(i, ROWS_AT_A_TIME)
                EACH(n, NB) acc[i][n] = load(kept[0].last + n * block + size_t(std::min(u + i, units - 1)) * LANES);
            multiply<ROWS_AT_A_TIME, NB>(acc, rows, d, block, w, 1, ROWS_AT_A_TIME);
            EACH(i, ROWS_AT_A_TIME)
                if (u + i < units) EACH(n, NB) store(kept[0].last + n * block + size_t(u + i) * LANES, acc[i][n]);
        }
    }
}

template <class Cell>
static void backward_recurrent(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const int inputs = gi.width, units = go.width, steps = go.height, rows = Cell::gates * units;
    order_weights<Cell>(p, op, true);
    int b = 0;
    for (; b + BLOCKS_AT_A_TIME <= p.blocks; b += BLOCKS_AT_A_TIME) backward_steps<Cell, BLOCKS_AT_A_TIME>(p, op, b);
    if constexpr (BLOCKS_AT_A_TIME > 1)
        for (; b < p.blocks; b++) backward_steps<Cell, 1>(p, op, b);
    auto at_step = [](float* first, int step, int features) { return first + size_t(step) * features * LANES; };
    // The first step has no last output, so the inner weights get nothing from it.
    auto before = [&](int b, int t) { return at_step(p.value(op.out, b), moment(op, steps, t + 1).before, units); };
    auto later = [&](int b, int t) {
        return at_step(Cell::inner_gradients(kept_of<Cell>(p, op, b)), moment(op, steps, t + 1).now, rows);
    };
    auto inner = [&](int b, int t) { return at_step(Cell::inner_gradients(kept_of<Cell>(p, op, b)), t, rows); };
    auto outer = [&](int b, int t) { return at_step(kept_of<Cell>(p, op, b).gates, t, rows); };
    auto in = [&](int b, int t) { return at_step(p.value(op.in, b), t, inputs); };
    step_weights(p, steps - 1, units, rows, before, later, gradient + op.inner_weight);
    step_weights(p, steps, inputs, rows, in, outer, gradient + op.weight);
    if (op.inner_bias >= 0) step_biases(p, steps, rows, inner, gradient + op.inner_bias);
    if (op.bias >= 0) step_biases(p, steps, rows, outer, gradient + op.bias);
    if (!op.input_gradient) return;
    for (int n = 0; n < p.blocks; n++)
        linear_steps(steps, rows, inputs, outer(n, 0), p.row + op.weight, 1, inputs, nullptr, p.grad(op.in, n));
}

}  // namespace WECFL_ISA
