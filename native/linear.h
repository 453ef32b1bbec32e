// Linear layers: their loops, forward pass and gradients. They look at all blocks of a batch at once.
#pragma once
#include "pass.h"

namespace WECFL_ISA {

// acc[o] += Σ_k w[o·so + k·sk] · in[k] for NB blocks.
template <int OB, int NB>
INLINE void multiply(V (&acc)[OB][NB], int inputs, const float* in, size_t in_block, const float* w, size_t so,
                     size_t sk) {
    for (int k = 0; k < inputs; k++) {
        V u[NB];
        EACH(b, NB) u[b] = load(in + b * in_block + size_t(k) * LANES);
        EACH(p, OB) {
            V weight = all(w[p * so + k * sk]);
            EACH(b, NB) acc[p][b] += u[b] * weight;
        }
    }
}

// out[o][lane] = bias[o] + Σ_k w[o·so + k·sk] · in[k][lane] for NB blocks: the forward pass with
// (so, sk) = (inputs, 1), the input gradient with (1, inputs) and the roles exchanged.
template <int OB, int NB>
INLINE void linear_tile(int inputs, const float* in, size_t in_block, const float* w, size_t so, size_t sk,
                        const float* bias, float* const* out, size_t out_block) {
    V acc[OB][NB];
    EACH(p, OB)
        EACH(b, NB) acc[p][b] = all(bias ? bias[p] : 0.f);
    multiply<OB, NB>(acc, inputs, in, in_block, w, so, sk);
    EACH(p, OB)
        EACH(b, NB) store(out[p] + b * out_block, acc[p][b]);
}

// `place(o)` is where output o of block 0 goes.
template <class Place>
static void linear(int blocks, int inputs, int outputs, const float* in, size_t in_block, const float* w,
                   size_t so, size_t sk, const float* bias, size_t out_block, Place place) {
    for (int b = 0; b < blocks;) {
        auto pair = [&](auto nb) {
            constexpr int NB = decltype(nb)::value;
            int o = 0;
            auto tile = [&](auto ob) {
                constexpr int OB = decltype(ob)::value;
                float* out[OB];
                for (int p = 0; p < OB; p++) out[p] = place(o + p) + b * out_block;
                linear_tile<OB, NB>(inputs, in + b * in_block, in_block, w + o * so, so, sk,
                                    bias ? bias + o : nullptr, out, out_block);
                o += OB;
            };
            if constexpr (NB == 1 || LANES_16)  // 12 accumulators hide the latency of a multiply-add
                while (outputs - o >= 12) tile(Constant<12>{});
            while (outputs - o >= 6) tile(Constant<6>{});
            while (outputs - o >= 2) tile(Constant<2>{});
            while (o < outputs) tile(Constant<1>{});
            b += NB;
        };
        if (blocks - b >= 2) pair(Constant<2>{});
        else pair(Constant<1>{});
    }
}

// dw[o][k] = Σ_samples grad[o][sample] · turned[sample][k], vectors along k; `more`: added to what is there.
template <int OB>
INLINE void linear_weights_rows(int samples, int inputs, const float* grad, size_t grad_block,
                                const float* turned, bool more, float* dw) {
    auto g = [&](int p, int s) { return grad[(s / LANES) * grad_block + size_t(p) * LANES + s % LANES]; };
    int k = 0;
    auto columns = [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        V acc[OB][N] = {};
        if (more)
            EACH(p, OB)
                EACH(n, N) acc[p][n] = load_any(dw + size_t(p) * inputs + k + n * LANES);
        for (int s = 0; s < samples; s++) {
            const float* t = turned + size_t(s) * inputs + k;
            V u[N];
            EACH(n, N) u[n] = load_any(t + n * LANES);
            EACH(p, OB) {
                V weight = all(g(p, s));
                EACH(n, N) acc[p][n] += u[n] * weight;
            }
        }
        EACH(p, OB)
            EACH(n, N) store_any(dw + size_t(p) * inputs + k + n * LANES, acc[p][n]);
        k += N * LANES;
    };
    while (k + 2 * LANES <= inputs) columns(Constant<2>{});
    if (k + LANES <= inputs) columns(Constant<1>{});
    for (; k < inputs; k++)
        for (int p = 0; p < OB; p++) {
            float total = more ? dw[size_t(p) * inputs + k] : 0;
            for (int s = 0; s < samples; s++) total += g(p, s) * turned[size_t(s) * inputs + k];
            dw[size_t(p) * inputs + k] = total;
        }
}

static void linear_weights(int samples, int inputs, int outputs, const float* grad, size_t grad_block,
                           const float* turned, bool more, float* dw) {
    int o = 0;
    for (; o + 6 <= outputs; o += 6)
        linear_weights_rows<6>(samples, inputs, grad + size_t(o) * LANES, grad_block, turned,
                               more, dw + size_t(o) * inputs);
    for (; o + 2 <= outputs; o += 2)
        linear_weights_rows<2>(samples, inputs, grad + size_t(o) * LANES, grad_block, turned,
                               more, dw + size_t(o) * inputs);
    for (; o < outputs; o++)
        linear_weights_rows<1>(samples, inputs, grad + size_t(o) * LANES, grad_block, turned,
                               more, dw + size_t(o) * inputs);
}

static void forward_linear(const Pass& p, const Op& op) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const int inputs = int(gi.size());
    float* out = p.value(op.out, 0);
    linear(p.blocks, inputs, go.channels, p.value(op.in, 0), gi.size() * LANES, p.row + op.weight, inputs, 1,
           op.bias < 0 ? nullptr : p.row + op.bias, go.size() * LANES,
           [&](int o) { return out + go.at(o, 0, 0) * LANES; });
}

static void backward_linear(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value, &hi = p.tensor(op.in).grad;
    const int inputs = int(gi.size()), outputs = go.channels;
    const float* g = p.grad(op.out, 0);
    const size_t g_block = go.size() * LANES;
    for (int b = 0; b < p.blocks; b++) {
        const float* h = p.value(op.in, b);
        float* turned = p.turned + size_t(b) * LANES * inputs;
        int k = 0;
        for (; k + LANES <= inputs; k += LANES) {
            V v[LANES];
            EACH(i, LANES) v[i] = load(h + size_t(k + i) * LANES);
            transpose(v);
            EACH(i, LANES) store_any(turned + size_t(i) * inputs + k, v[i]);
        }
        for (; k < inputs; k++)
            for (int i = 0; i < LANES; i++) turned[size_t(i) * inputs + k] = h[size_t(k) * LANES + i];
    }
    linear_weights(p.batch.count, inputs, outputs, g, g_block, p.turned, p.batch.before > 0, gradient + op.weight);
    float* biases = p.partial + op.partial_at * LANES;
    for (size_t o = 0; o < op.partial_biases; o++) {
        V acc = load(biases + o * LANES);
        for (int b = 0; b < p.blocks; b++) acc += load(g + b * g_block + o * LANES);
        store(biases + o * LANES, acc);
    }
    if (!op.input_gradient) return;
    float* out = p.grad(op.in, 0);
    const int plane = gi.height * gi.width;
    linear(p.blocks, outputs, inputs, g, g_block, p.row + op.weight, 1, inputs, nullptr, hi.size() * LANES,
           [&](int k) { return out + hi.at(k / plane, k % plane / gi.width, k % gi.width) * LANES; });
}

}  // namespace WECFL_ISA
