// Sequences: a step is a row of a plane, so a step of all features of LANES samples is one piece of memory. Embedding,
// linear layers on each step, single steps and the mean over time.
#pragma once
#include <algorithm>

#include "linear.h"

namespace WECFL_ISA {

// dw[o][k] += Σ_s grad_s[o] · turned[s][k] for OB rows and N vectors along k, of which `valid` columns are there.
// The samples s are the first `live(n)` lanes of the blocks n, whose gradients begin at grads(n).
template <int OB, int N, class Grads, class Live>
INLINE void step_weights_tile(int blocks, Grads grads, Live live, const float* turned, size_t panel, float* dw,
                              size_t inputs, int valid) {
    V acc[OB][N];
    if (valid == N * LANES) {
        EACH(p, OB)
            EACH(n, N) acc[p][n] = load_any(dw + p * inputs + n * LANES);
    } else {
        EACH(p, OB)
            EACH(n, N) acc[p][n] = V{};
    }
    for (int n = 0; n < blocks; n++) {
        const float* g = grads(n);
        const int lanes = live(n);
        for (int lane = 0; lane < lanes; lane++, turned += LANES) {
            V u[N];
            EACH(i, N) u[i] = load(turned + i * panel);
            EACH(p, OB) {
                const V weight = all(g[p * LANES + lane]);
                EACH(i, N) acc[p][i] += u[i] * weight;
            }
        }
    }
    if (valid == N * LANES) {
        EACH(p, OB)
            EACH(n, N) store_any(dw + p * inputs + n * LANES, acc[p][n]);
        return;
    }
    EACH(p, OB) {
        float sums[N * LANES];
        EACH(n, N) store_any(sums + n * LANES, acc[p][n]);
        for (int k = 0; k < valid; k++) dw[p * inputs + k] += sums[k];
    }
}

// dw[o][k] = Σ_steps Σ_samples grad[o] · in[k]; in(b, t) and grad(b, t) are the numbers of block b at step t. Some
// samples at a time are turned, so that vectors go along k: all rows of dw then read them from the first cache.
template <class In, class Grad>
static void step_weights(const Pass& p, int steps, int inputs, int outputs, In in, Grad grad, float* dw) {
    constexpr int MANY = LANES_16 ? 12 : 6, FEW = LANES_16 ? 4 : 2;  // rows, beside two vectors: 24 or 12 accumulators
    constexpr int blocks_at_a_time = SAMPLES_AT_A_TIME / LANES;
    const size_t panel = size_t(SAMPLES_AT_A_TIME) * LANES;
    std::fill(dw, dw + size_t(outputs) * inputs, 0.f);
    const int all_blocks = p.blocks * steps;
    auto live = [&](int n) { return std::min(LANES, p.batch.count - n / steps * LANES); };
    for (int first = 0; first < all_blocks; first += blocks_at_a_time) {
        const int blocks = std::min(blocks_at_a_time, all_blocks - first);
        for (int n = first, s = 0; n < first + blocks; s += live(n++)) {
            const float* from = in(n / steps, n % steps);
            for (int k = 0; k < inputs; k += LANES) {
                V v[LANES];
                EACH(i, LANES) v[i] = k + i < inputs ? load(from + size_t(k + i) * LANES) : V{};
                transpose(v);
                float* to = p.turned_steps + k / LANES * panel + size_t(s) * LANES;
                EACH(i, LANES)
                    if (i < live(n)) store(to + i * LANES, v[i]);
            }
        }
        for (int k = 0; k < inputs;) {
            auto columns = [&](auto vectors) {
                constexpr int N = decltype(vectors)::value;
                int o = 0;
                auto rows = [&](auto ob) {
                    step_weights_tile<decltype(ob)::value, N>(
                        blocks,
                        [&](int n) { return grad((first + n) / steps, (first + n) % steps) + size_t(o) * LANES; },
                        [&](int n) { return live(first + n); }, p.turned_steps + k / LANES * panel, panel,
                        dw + size_t(o) * inputs + k, inputs, std::min(N * LANES, inputs - k));
                    o += decltype(ob)::value;
                };
                while (outputs - o >= MANY) rows(Constant<MANY>{});
                while (outputs - o >= FEW) rows(Constant<FEW>{});
                while (o < outputs) rows(Constant<1>{});
                k += N * LANES;
            };
            if (inputs - k > LANES) columns(Constant<2>{});
            else columns(Constant<1>{});
        }
    }
}

// db[o] = Σ_steps Σ_samples grad[o]; lanes beyond the batch hold zeros.
template <class Grad>
static void step_biases(const Pass& p, int steps, int outputs, Grad grad, float* db) {
    for (int o = 0; o < outputs; o++) {
        V acc = {};
        for (int b = 0; b < p.blocks; b++)
            for (int t = 0; t < steps; t++) acc += load(grad(b, t) + size_t(o) * LANES);
        db[o] = sum(acc);
    }
}

// A linear map of all steps of a block: they are so many blocks to the loops of a linear layer.
static void linear_steps(int steps, int inputs, int outputs, const float* in, const float* w, size_t so, size_t sk,
                         const float* bias, float* out) {
    linear(steps, inputs, outputs, in, size_t(inputs) * LANES, w, so, sk, bias, size_t(outputs) * LANES,
           [&](int o) { return out + size_t(o) * LANES; });
}

static void forward_linear_steps(const Pass& p, const Op& op) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    for (int b = 0; b < p.blocks; b++)
        linear_steps(gi.height, gi.width, go.width, p.value(op.in, b), p.row + op.weight, gi.width, 1,
                     op.bias < 0 ? nullptr : p.row + op.bias, p.value(op.out, b));
}

static void backward_linear_steps(const Pass& p, const Op& op, float* gradient) {
    const int steps = p.tensor(op.in).value.height, inputs = p.tensor(op.in).value.width,
              outputs = p.tensor(op.out).value.width;
    auto in = [&](int b, int t) { return p.value(op.in, b) + size_t(t) * inputs * LANES; };
    auto grad = [&](int b, int t) { return p.grad(op.out, b) + size_t(t) * outputs * LANES; };
    step_weights(p, steps, inputs, outputs, in, grad, gradient + op.weight);
    if (op.bias >= 0) step_biases(p, steps, outputs, grad, gradient + op.bias);
    if (!op.input_gradient) return;
    for (int b = 0; b < p.blocks; b++)
        linear_steps(steps, outputs, inputs, p.grad(op.out, b), p.row + op.weight, 1, inputs, nullptr, p.grad(op.in, b));
}

// Row `token` of the table for each token; the runner has checked that it is there.
static void forward_embedding(const Pass& p, const Op& op) {
    const Geometry& go = p.tensor(op.out).value;
    const int features = go.width;
    for (int b = 0; b < p.blocks; b++)
        for (int t = 0; t < go.height; t++) {
            const float *tokens = p.value(op.in, b) + size_t(t) * LANES, *from[LANES];
            for (int i = 0; i < LANES; i++) from[i] = p.row + op.weight + size_t(tokens[i]) * features;
            float* to = p.value(op.out, b) + size_t(t) * features * LANES;
            int k = 0;
            for (; k + LANES <= features; k += LANES) {
                V v[LANES];
                EACH(i, LANES) v[i] = load_any(from[i] + k);
                transpose(v);
                EACH(i, LANES) store(to + size_t(k + i) * LANES, v[i]);
            }
            for (; k < features; k++)
                for (int i = 0; i < LANES; i++) to[size_t(k) * LANES + i] = from[i][k];
        }
}

static void backward_embedding(const Pass& p, const Op& op, float* gradient) {
    const Geometry& go = p.tensor(op.out).value;
    const int features = go.width;
    float* table = gradient + op.weight;
    std::fill(table, table + size_t(op.table_rows) * features, 0.f);
    for (int b = 0; b < p.blocks; b++)
        for (int t = 0; t < go.height; t++) {
            const float *tokens = p.value(op.in, b) + size_t(t) * LANES,
                        *up = p.grad(op.out, b) + size_t(t) * features * LANES;
            const int live = std::min(LANES, p.batch.count - b * LANES);
            int k = 0;
            for (; k + LANES <= features; k += LANES) {
                V v[LANES];
                EACH(i, LANES) v[i] = load(up + size_t(k + i) * LANES);
                transpose(v);
                EACH(i, LANES) {
                    if (i >= live) continue;
                    float* to = table + size_t(tokens[i]) * features + k;
                    store_any(to, load_any(to) + v[i]);
                }
            }
            for (; k < features; k++)
                for (int i = 0; i < live; i++)
                    table[size_t(tokens[i]) * features + k] += up[size_t(k) * LANES + i];
        }
    if (op.number >= 0) std::fill_n(table + size_t(op.number) * features, features, 0.f);
}

static void forward_step(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const size_t size = size_t(gi.width) * LANES;
    std::memcpy(p.value(op.out, b), p.value(op.in, b) + op.number * size, size * sizeof(float));
}

static void backward_step(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const size_t size = size_t(gi.width) * LANES;
    float* to = p.grad(op.in, b);
    std::memset(to, 0, size * gi.height * sizeof(float));
    std::memcpy(to + op.number * size, p.grad(op.out, b), size * sizeof(float));
}

static void forward_time_mean(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const float* in = p.value(op.in, b);
    float* out = p.value(op.out, b);
    for (int k = 0; k < gi.width; k++) {
        V acc = {};
        for (int t = 0; t < gi.height; t++) acc += load(in + (size_t(t) * gi.width + k) * LANES);
        store(out + size_t(k) * LANES, acc / float(gi.height));
    }
}

static void backward_time_mean(const Pass& p, const Op& op, int b) {
    const Geometry& gi = p.tensor(op.in).value;
    const float* up = p.grad(op.out, b);
    float* to = p.grad(op.in, b);
    for (int t = 0; t < gi.height; t++)
        for (int k = 0; k < gi.width; k++, to += LANES) store(to, load(up + size_t(k) * LANES) / float(gi.height));
}

}  // namespace WECFL_ISA
