// Softmax attention within short sequences. Every lane is a sample, so all products are of vectors with vectors: sums
// over neighbouring steps and features stay in registers.
#pragma once
#include <cmath>

#include "pass.h"
#include "vector_math.h"

namespace WECFL_ISA {

// A matrix of vectors: entry (i, k) is i·row + k·column vectors from its first.
struct Matrix {
    float* at;
    size_t row, column;
    float* operator()(int i, int k) const { return at + (i * row + k * column) * LANES; }
    Matrix turned() const { return {at, column, row}; }
};

template <int MI, int NJ>
INLINE void lane_product_tile(int i, int j, int inner, float scale, const Matrix& a, const Matrix& b, const Matrix& to) {
    V acc[MI][NJ] = {};
    for (int k = 0; k < inner; k++) {
        V u[NJ];
        EACH(q, NJ) u[q] = load(b(k, j + q));
        EACH(p, MI) {
            const V v = load(a(i + p, k));
            EACH(q, NJ) acc[p][q] += v * u[q];
        }
    }
    EACH(p, MI)
        EACH(q, NJ) store(to(i + p, j + q), acc[p][q] * scale);
}

// to = scale · a · b, where a has `rows` rows, b has `columns` columns, and `inner` numbers are summed up.
static __attribute__((noinline)) void lane_product(int rows, int columns, int inner, float scale, const Matrix& a,
                                                   const Matrix& b, const Matrix& to) {
    constexpr int MI = 4, NJ = LANES_16 ? 6 : 3;
    for (int i = 0; i < rows;) {
        auto some = [&](auto mi) {
            constexpr int M = decltype(mi)::value;
            int j = 0;
            for (; j + NJ <= columns; j += NJ) lane_product_tile<M, NJ>(i, j, inner, scale, a, b, to);
            for (; j < columns; j++) lane_product_tile<M, 1>(i, j, inner, scale, a, b, to);
            i += M;
        };
        if (rows - i >= MI) some(Constant<MI>{});
        else some(Constant<1>{});
    }
}

// One head of a block: queries, keys and values are thirds of a step's features.
struct Head {
    int steps, size;
    float scale;
    Matrix queries, keys, values, out, shares;
};

static Head head_of(const Pass& p, const Op& op, int b, int h, float* in, float* out) {
    const Geometry& go = p.tensor(op.out).value;
    const int steps = go.height, size = go.width / op.groups;
    auto third = [&](int n) { return Matrix{in + (size_t(n) * go.width + h * size) * LANES, size_t(3) * go.width, 1}; };
    float* shares = p.kept + (op.kept_at * p.capacity + op.kept_size * b + size_t(h) * steps * steps) * LANES;
    return {steps, size, op.rate > 0 ? op.rate : 1.f / std::sqrt(float(size)), third(0), third(1), third(2),
            {out + size_t(h) * size * LANES, size_t(go.width), 1}, {shares, size_t(steps), 1}};
}

static void forward_attention(const Pass& p, const Op& op, int b) {
    for (int h = 0; h < op.groups; h++) {
        const Head head = head_of(p, op, b, h, p.value(op.in, b), p.value(op.out, b));
        lane_product(head.steps, head.steps, head.size, head.scale, head.queries, head.keys.turned(), head.shares);
        for (int i = 0; i < head.steps; i++) {
            const int seen = op.causal ? i + 1 : head.steps;  // the others get no share
            V top = load(head.shares(i, 0)), total{};
            for (int j = 1; j < seen; j++) {
                const V score = load(head.shares(i, j));
                top = select(score > top, score, top);
            }
            for (int j = 0; j < seen; j++) {
                const V share = exp_of(load(head.shares(i, j)) - top);
                store(head.shares(i, j), share);
                total += share;
            }
            const V inverse = 1.f / total;
            for (int j = 0; j < seen; j++) store(head.shares(i, j), load(head.shares(i, j)) * inverse);
            for (int j = seen; j < head.steps; j++) store(head.shares(i, j), V{});
        }
        lane_product(head.steps, head.size, head.steps, 1.f, head.shares, head.values, head.out);
    }
}

// With shares P and the gradient G of the output: ∂values = Pᵀ·G; of the scores P∘(G·valuesᵀ − its mean by P);
// ∂queries and ∂keys are that matrix, or its turned one, times keys or queries.
static void backward_attention(const Pass& p, const Op& op, int b) {
    for (int h = 0; h < op.groups; h++) {
        const Head head = head_of(p, op, b, h, p.value(op.in, b), p.grad(op.out, b));
        const Head down = head_of(p, op, b, h, p.grad(op.in, b), nullptr);
        const Matrix scores{p.room, size_t(head.steps), 1};
        lane_product(head.steps, head.size, head.steps, 1.f, head.shares.turned(), head.out, down.values);
        lane_product(head.steps, head.steps, head.size, 1.f, head.out, head.values.turned(), scores);
        for (int i = 0; i < head.steps; i++) {
            V mean{};
            for (int j = 0; j < head.steps; j++) mean += load(head.shares(i, j)) * load(scores(i, j));
            for (int j = 0; j < head.steps; j++)
                store(scores(i, j), load(head.shares(i, j)) * (load(scores(i, j)) - mean));
        }
        lane_product(head.steps, head.size, head.steps, head.scale, scores, head.keys, down.queries);
        lane_product(head.steps, head.size, head.steps, head.scale, scores.turned(), head.queries, down.keys);
    }
}

}  // namespace WECFL_ISA
