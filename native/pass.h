// One mini-batch on its way through a network: where its numbers are, and the loops over them.
#pragma once
#include <cstring>

#include "plan.h"
#include "simd.h"

namespace WECFL_ISA {
using namespace wecfl;

struct Pass {
    const Network& net;
    float* row;  // the client's parameters; training also writes BatchNorm's running statistics to it
    const Batch& batch;
    Mode mode;
    uint64_t key;  // of Dropout's draws
    int capacity, blocks;  // blocks that the workspace has room for; blocks of this batch
    // Parts of the workspace, as `lay_out` divides it.
    float *tensors = nullptr, *partial = nullptr, *statistics = nullptr, *turned = nullptr,
          *flipped = nullptr, *rows = nullptr, *combined = nullptr, *room = nullptr, *moments = nullptr,
          *kept = nullptr, *ordered = nullptr, *turned_steps = nullptr, *square_sums = nullptr;
    uint8_t* codes = nullptr;
    float* gradient = nullptr;  // (trainable,), what the backward pass makes

    const Tensor& tensor(int t) const { return net.tensors[t]; }
    float* value(int t, int b) const {
        return tensors + (tensor(t).value_at * capacity + tensor(t).value.size() * b) * LANES;
    }
    float* grad(int t, int b) const {
        return tensors + (tensor(t).grad_at * capacity + tensor(t).grad.size() * b) * LANES;
    }
    uint8_t* code(const Op& op, int b) const {
        const Geometry& g = tensor(op.out).value;
        return codes + (op.codes_at * capacity + size_t(g.channels) * g.height * g.width * b) * LANES;
    }
    V live(int b) const {  // 1 for lanes that hold a sample
        V mask;
        for (int i = 0; i < LANES; i++) mask[i] = b * LANES + i < batch.count ? 1.f : 0.f;
        return mask;
    }
    float samples_per_channel(const Geometry& g) const { return float(batch.count) * g.height * g.width; }
};

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Divides the workspace from `base` on among the parts of a pass; how many bytes that takes.
static size_t lay_out(Pass& p, char* base) {
    const Network& n = p.net;
    char* at = base;
    auto take = [&](size_t bytes) {
        char* start = at;
        at += aligned(bytes);
        return start;
    };
    const size_t vector = LANES * sizeof(float);
    p.tensors = reinterpret_cast<float*>(take(n.tensors_size * p.capacity * vector));
    p.partial = reinterpret_cast<float*>(take(n.partial_size * vector));
    p.statistics = reinterpret_cast<float*>(take(n.statistics_size * sizeof(float)));
    p.turned = reinterpret_cast<float*>(take(n.turned_size * p.capacity * LANES * sizeof(float)));
    p.flipped = reinterpret_cast<float*>(take(n.flipped_size * sizeof(float)));
    p.rows = reinterpret_cast<float*>(take(n.rows_size * vector));
    p.combined = reinterpret_cast<float*>(take(n.combined_size * sizeof(float)));
    p.room = reinterpret_cast<float*>(take(n.room_size * vector));
    p.moments = reinterpret_cast<float*>(take(n.moments_size * p.capacity * vector));
    p.kept = reinterpret_cast<float*>(take(n.kept_size * p.capacity * vector));
    p.ordered = reinterpret_cast<float*>(take(n.ordered_size * sizeof(float)));
    p.turned_steps = reinterpret_cast<float*>(take(n.turned_steps_size * sizeof(float)));
    p.square_sums = reinterpret_cast<float*>(take(n.square_sums_size * sizeof(float)));
    p.codes = reinterpret_cast<uint8_t*>(take(n.codes_size * p.capacity * LANES));
    return size_t(at - base);
}

// The samples of block b, from the pool into the first tensor.
static void gather(const Pass& p, int b) {
    const Geometry& g = p.tensor(0).value;
    const float* from[LANES];
    for (int i = 0; i < LANES; i++) {  // lanes beyond the batch repeat a sample; they carry no loss
        const int s = b * LANES + i < p.batch.count ? b * LANES + i : 0;
        from[i] = p.batch.samples + p.batch.rows[s] * p.batch.sample_size;
    }
    float* out = p.value(0, b);
    size_t e = 0;
    for (int c = 0; c < g.channels; c++)
        for (int y = 0; y < g.height; y++) {
            float* to = out + g.at(c, y, 0) * LANES;
            int x = 0;
            for (; x + LANES <= g.width; x += LANES, e += LANES) {
                V v[LANES];
                EACH(i, LANES) v[i] = load_any(from[i] + e);
                transpose(v);
                EACH(i, LANES) store(to + (x + i) * LANES, v[i]);
            }
            for (; x < g.width; x++, e++)
                for (int i = 0; i < LANES; i++) to[x * LANES + i] = from[i][e];
        }
}

// All pixels of channel c: f(y, x, where they are, in floats).
template <class F>
INLINE void pixels(const Geometry& g, int c, F f) {
    for (int y = 0; y < g.height; y++) {
        size_t at = g.at(c, y, 0) * LANES;
        for (int x = 0; x < g.width; x++, at += LANES) f(y, x, at);
    }
}

// Element by element: out = f(in, channel, row, column).
template <class F>
static void map(const Geometry& gi, const float* in, const Geometry& go, float* out, F f) {
    for (int c = 0; c < gi.channels; c++)
        pixels(gi, c, [&](int y, int x, size_t at) {
            float* to = out + go.at(c, y, x) * LANES;
            fetch_ahead(in + at), fetch_ahead(to);
            store(to, f(load(in + at), c, y, x));
        });
}

// The gradient of an addition is that of an input which doesn't share its memory.
static void copy_gradient(const Pass& p, int from, int to, int b) {
    map(p.tensor(from).grad, p.grad(from, b), p.tensor(to).grad, p.grad(to, b), [](V v, int, int, int) { return v; });
}

// sums[c][lane] += Σ_pixels of channel c
static void add_channel_sums(const Geometry& g, const float* from, float* sums) {
    for (int c = 0; c < g.channels; c++) {
        V acc = load(sums + c * LANES);
        pixels(g, c, [&](int, int, size_t at) { acc += load(from + at); });
        store(sums + c * LANES, acc);
    }
}

// Adds up the lanes of all partial sums: gradients of weights and biases.
static void reduce_partial_sums(const Pass& p, float* gradient) {
    for (int i = 0; i < p.net.op_count; i++) {
        const Op& op = p.net.ops[i];
        const float* sums = p.partial + op.partial_at * LANES;
        for (size_t n = 0; n < op.partial_weights; n++) gradient[op.weight + n] = sum(load(sums + n * LANES));
        sums += op.partial_weights * LANES;
        for (size_t n = 0; n < op.partial_biases; n++) gradient[op.bias + n] = sum(load(sums + n * LANES));
    }
}

static void clear(const Geometry& g, float* at) {
    for (int c = 0; c < g.channels; c++) pixels(g, c, [&](int, int, size_t i) { store(at + i, V{}); });
}

// One byte for each lane: which input won a maximum, or whether Dropout kept it.
INLINE void put_code(uint8_t* to, I code) { *reinterpret_cast<B*>(to) = __builtin_convertvector(code, B); }
INLINE I get_code(const uint8_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const B*>(from), I);
}

}  // namespace WECFL_ISA
