// The passes of a network over one mini-batch, compiled once for each instruction set.
//
// Operations that look at one block at a time (convolution, ReLU, pooling, dropout) run block by
// block, so that a block's activations stay in the second-level cache from one layer to the next;
// BatchNorm and linear layers look at all blocks at once. Lanes beyond the batch hold zeros, carry no
// loss and are kept out of BatchNorm's sums.
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "winograd.h"

namespace WECFL_ISA {
using namespace wecfl;

struct Pass {
    const Network& net;
    float* row;
    const Batch& batch;
    Mode mode;
    uint64_t key;
    int capacity, blocks;  // blocks of the workspace; of this batch
    float *tensors = nullptr, *partial = nullptr, *statistics = nullptr, *turned = nullptr,
          *flipped = nullptr, *rows = nullptr, *combined = nullptr, *room = nullptr;
    uint8_t* codes = nullptr;

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

static size_t lay_out(Pass& p, char* base) {
    const Network& n = p.net;
    char* at = base;
    auto take = [&](size_t bytes) {
        char* here = at;
        at += aligned(bytes);
        return here;
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
    p.codes = reinterpret_cast<uint8_t*>(take(n.codes_size * p.capacity * LANES));
    return size_t(at - base);
}

// ---- small pieces -----------------------------------------------------------------------------

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

template <class F>
INLINE void pixels(const Geometry& g, int c, F f) {
    for (int y = 0; y < g.height; y++) {
        size_t at = g.at(c, y, 0) * LANES;
        for (int x = 0; x < g.width; x++, at += size_t(g.step) * LANES) f(y, x, at);
    }
}

static ConvShape conv_shape(const Geometry& in, const Geometry& out) {
    return {in.channels,
            out.channels,
            out.height,
            out.width,
            in.plane() * LANES,
            size_t(in.columns()) * LANES,
            out.plane() * LANES,
            size_t(out.columns()) * out.step * LANES,
            size_t(out.step) * LANES};
}

// Kernel size and stride as compile-time numbers.
template <class F>
static void with_kernel(const Op& op, F f) {
    auto stride = [&](auto k) { return op.stride == 1 ? f(k, Constant<1>{}) : f(k, Constant<2>{}); };
    switch (op.kernel) {
        case 1:
            return stride(Constant<1>{});
        case 3:
            return stride(Constant<3>{});
        case 5:
            return stride(Constant<5>{});
        default:
            return stride(Constant<7>{});
    }
}

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
INLINE void put_code(uint8_t* to, I code) { *reinterpret_cast<B*>(to) = __builtin_convertvector(code, B); }
INLINE I get_code(const uint8_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const B*>(from), I);
}

static float random_unit(uint64_t key, uint64_t counter) {  // splitmix64, 24 bits
    uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return float((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

// ---- BatchNorm --------------------------------------------------------------------------------

// Statistics of an operation: mean, 1/√(variance + ε), Σg, Σg·x̂ for each channel.
struct Statistics {
    float *mean, *inverse, *sum, *sum_hat;
};
static Statistics statistics(const Pass& p, const Op& op) {
    float* at = p.statistics + op.statistics_at;
    const int c = p.tensor(op.in).value.channels;
    return {at, at + c, at + 2 * c, at + 3 * c};
}

static void measure(const Pass& p, const Op& op) {
    const Geometry& g = p.tensor(op.in).value;
    const Statistics s = statistics(p, op);
    float *mean = p.row + op.mean, *variance = p.row + op.variance;
    const double n = p.samples_per_channel(g);
    for (int c = 0; c < g.channels; c++) {
        if (p.mode == Mode::running) {
            s.mean[c] = mean[c];
            s.inverse[c] = 1.f / std::sqrt(variance[c] + op.eps);
            continue;
        }
        double total = 0, rest = 0, squares = 0;
        for (int b = 0; b < p.blocks; b++) {
            const float* z = p.value(op.in, b);
            V acc = {};
            pixels(g, c, [&](int, int, size_t at) { acc += load(z + at); });
            total += sum(acc * p.live(b));
        }
        const float near = float(total / n);
        for (int b = 0; b < p.blocks; b++) {  // around the sum's rounded mean, which `rest` then corrects
            const float* z = p.value(op.in, b);
            V acc = {}, acc_squares = {};
            pixels(g, c, [&](int, int, size_t at) {
                V d = load(z + at) - near;
                acc += d;
                acc_squares += d * d;
            });
            rest += sum(acc * p.live(b)), squares += sum(acc_squares * p.live(b));
        }
        squares -= rest * rest / n;
        s.mean[c] = float(near + rest / n);
        s.inverse[c] = float(1 / std::sqrt(squares / n + op.eps));
        if (p.mode == Mode::train) {
            mean[c] += op.momentum * (s.mean[c] - mean[c]);
            variance[c] += op.momentum * (float(squares / (n - 1)) - variance[c]);
        }
    }
}

// (z − mean)·scale + shift: subtracting first keeps the digits of a channel far from zero.
struct Affine {
    V mean, scale, shift;
    V operator()(V z) const { return (z - mean) * scale + shift; }
};
INLINE Affine affine(const Pass& p, const Op& op, const Statistics& s, int c) {
    const float weight = op.weight < 0 ? 1.f : p.row[op.weight + c];
    return {all(s.mean[c]), all(weight * s.inverse[c]), all(op.bias < 0 ? 0.f : p.row[op.bias + c])};
}

// ---- forward ----------------------------------------------------------------------------------

static void forward_pool2(const Pass& p, const Op& op, int b) {  // (BatchNorm,) ReLU, 2 × 2 maximum
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const Statistics s = statistics(p, op);
    const float* z = p.value(op.in, b);
    float* out = p.value(op.out, b);
    uint8_t* codes = p.code(op, b);
    const size_t below = size_t(gi.columns()) * LANES;
    for (int c = 0; c < go.channels; c++) {
        Affine f = op.kind == Kind::norm_relu_pool ? affine(p, op, s, c) : Affine{V{}, all(1), V{}};
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

// Weights for winograd.h, of the forward pass or of the input gradient.
static void combine(const Pass& p, bool back) {
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (!(back ? op.pairs_back : op.pairs)) continue;
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels;
        with_kernel(op, [&](auto k, auto) {
            constexpr int K = decltype(k)::value;
            if constexpr (K > 1)
                back ? combine_weights<K>(co, ci, p.flipped + op.partial_at, p.combined + op.combined_back_at)
                     : combine_weights<K>(ci, co, p.row + op.weight, p.combined + op.combined_at);
        });
    }
}

static void forward_conv(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float *in = p.value(op.in, b), *w = p.row + op.weight,
                *bias = op.bias < 0 ? nullptr : p.row + op.bias;
    ConvShape s = conv_shape(gi, go);
    with_kernel(op, [&](auto k, auto stride) {
        constexpr int K = decltype(k)::value, S = decltype(stride)::value;
        auto rows = [&](float* out, int from, int to) {
            if constexpr (K > 1 && S == 1)
                if (op.pairs)
                    return conv_pairs<K>(s, in, p.combined + op.combined_at, bias, p.room, out, from, to);
            conv_forward<K, S>(s, in, w, bias, out, from, to);
        };
        if (!op.pools_rows) return rows(p.value(op.out, b) + go.at(0, 0, 0) * LANES, 0, go.height);
        // Two rows at a time into a small buffer, then through ReLU and the pooling after it.
        const Op& pool = *(&op + 1);
        const Geometry& gp = p.tensor(pool.out).value;
        float* out = p.value(pool.out, b);
        uint8_t* codes = p.code(pool, b);
        s.out_row = size_t(go.width) * LANES;
        s.out_plane = 2 * s.out_row;
        s.out_step = LANES;
        for (int y = 0; y < gp.height; y++) {
            rows(p.rows, 2 * y, 2 * y + 2);
            for (int c = 0; c < go.channels; c++)
                for (int x = 0; x < gp.width; x++) {
                    const float* t = p.rows + c * s.out_plane + 2 * x * LANES;
                    Winner won =
                        winner(load(t), load(t + LANES), load(t + s.out_row), load(t + s.out_row + LANES));
                    store(out + gp.at(c, y, x) * LANES, won.best);
                    put_code(codes + ((size_t(c) * gp.height + y) * gp.width + x) * LANES, won.code);
                }
        }
    });
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

// Element by element: out = f(in, channel, running number).
template <class F>
static void map(const Geometry& gi, const float* in, const Geometry& go, float* out, F f) {
    size_t e = 0;
    for (int c = 0; c < gi.channels; c++)
        pixels(gi, c, [&](int y, int x, size_t at) {
            store(out + go.at(c, y, x) * LANES, f(load(in + at), c, e++));
        });
}

static void forward_block(const Pass& p, const Op& op, int b) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const float* in = p.value(op.in, b);
    float* out = p.value(op.out, b);
    switch (op.kind) {
        case Kind::conv:
            return forward_conv(p, op, b);
        case Kind::relu_pool:
            if (!op.pooled) forward_pool2(p, op, b);
            return;
        case Kind::norm_relu_pool:
            return forward_pool2(p, op, b);
        case Kind::max_pool:
            return forward_max_pool(p, op, b);
        case Kind::avg_pool:
            return forward_avg_pool(p, op, b);
        case Kind::relu:
            return map(gi, in, go, out, [](V v, int, size_t) { return positive(v); });
        case Kind::norm: {
            const Statistics s = statistics(p, op);
            return map(gi, in, go, out, [&](V v, int c, size_t) { return affine(p, op, s, c)(v); });
        }
        case Kind::dropout: {
            uint8_t* mask = p.code(op, b);
            const float keep = 1.f / (1.f - op.rate);
            return map(gi, in, go, out, [&](V v, int, size_t e) {
                if (p.mode != Mode::train) return v;
                V kept = {};
                for (int i = 0; i < LANES; i++) {
                    const size_t sample = size_t(b) * LANES + i,
                                 elements = size_t(gi.channels) * gi.height * gi.width;
                    const bool yes =
                        random_unit(p.key ^ (op.codes_at << 40), sample * elements + e) >= op.rate;
                    mask[e * LANES + i] = yes;
                    kept[i] = yes ? keep : 0.f;
                }
                return v * kept;
            });
        }
        case Kind::linear:
            return;
    }
}

static void forward_linear(const Pass& p, const Op& op) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const int inputs = int(gi.size());
    float* out = p.value(op.out, 0);
    linear(p.blocks, inputs, go.channels, p.value(op.in, 0), gi.size() * LANES, p.row + op.weight, inputs, 1,
           op.bias < 0 ? nullptr : p.row + op.bias, go.size() * LANES,
           [&](int o) { return out + go.at(o, 0, 0) * LANES; });
}

static bool has_statistics(const Op& op) { return op.kind == Kind::norm || op.kind == Kind::norm_relu_pool; }

static void forward_all(const Pass& p) {
    combine(p, false);
    for (int b = 0; b < p.blocks; b++) gather(p, b);
    for (int i = 0; i < p.net.op_count;) {
        const Op& op = p.net.ops[i];
        if (op.kind == Kind::linear) {
            forward_linear(p, op);
            i++;
            continue;
        }
        if (has_statistics(op)) measure(p, op);
        int end = i + 1;  // up to the next operation that needs all blocks
        while (end < p.net.op_count && p.net.ops[end].kind != Kind::linear && !has_statistics(p.net.ops[end]))
            end++;
        for (int b = 0; b < p.blocks; b++)
            for (int j = i; j < end; j++) forward_block(p, p.net.ops[j], b);
        i = end;
    }
}

// ---- backward ---------------------------------------------------------------------------------

// Σg and Σg·x̂ of a BatchNorm, and so its own gradients; `upstream(b, c, f)` calls f(g, z) for every
// pixel that has a gradient.
template <class Upstream>
static void norm_sums(const Pass& p, const Op& op, float* gradient, Upstream upstream) {
    const Geometry& gi = p.tensor(op.in).value;
    const Statistics s = statistics(p, op);
    for (int c = 0; c < gi.channels; c++) {
        double total = 0, total_hat = 0;
        const V mean = all(s.mean[c]), inverse = all(s.inverse[c]);
        for (int b = 0; b < p.blocks; b++) {
            V acc = {}, acc_hat = {};
            upstream(b, c, [&](V g, V z) {
                acc += g;
                acc_hat += g * ((z - mean) * inverse);
            });
            total += sum(acc), total_hat += sum(acc_hat);
        }
        s.sum[c] = float(total), s.sum_hat[c] = float(total_hat);
        if (op.bias >= 0) gradient[op.bias + c] = s.sum[c];
        if (op.weight >= 0) gradient[op.weight + c] = s.sum_hat[c];
    }
}

// ∂z = γ/σ·(g − Σg/n − x̂·Σ(g·x̂)/n), as a·g + rest(z); running statistics don't depend on z: γ/σ·g.
struct NormBack {
    V a, b, d, mean;
    V rest(V z) const { return b * (z - mean) + d; }
};
static NormBack norm_back(const Pass& p, const Op& op, int c) {
    const Statistics s = statistics(p, op);
    const float n = p.samples_per_channel(p.tensor(op.in).value);
    const float a = (op.weight < 0 ? 1.f : p.row[op.weight + c]) * s.inverse[c];
    if (p.mode == Mode::running) return {all(a), V{}, V{}, V{}};
    return {all(a), all(-a * s.inverse[c] * s.sum_hat[c] / n), all(-a * s.sum[c] / n), all(s.mean[c])};
}

static void backward_norm(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    norm_sums(p, op, gradient, [&](int b, int c, auto f) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        pixels(gi, c, [&](int y, int x, size_t at) { f(load(g + ho.at(c, y, x) * LANES), load(z + at)); });
    });
    for (int b = 0; b < p.blocks; b++) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        float* out = p.grad(op.in, b);
        const V live = p.live(b);
        for (int c = 0; c < gi.channels; c++) {
            const NormBack n = norm_back(p, op, c);
            pixels(gi, c, [&](int y, int x, size_t at) {
                V v = n.a * load(g + ho.at(c, y, x) * LANES) + n.rest(load(z + at));
                store(out + hi.at(c, y, x) * LANES, v * live);
            });
        }
    }
}

static void backward_norm_relu_pool(const Pass& p, const Op& op, float* gradient) {
    const Geometry &gi = p.tensor(op.in).value, &go = p.tensor(op.out).value;
    const Geometry &ho = p.tensor(op.out).grad, &hi = p.tensor(op.in).grad;
    const size_t below = size_t(gi.columns()) * LANES;
    norm_sums(p, op, gradient, [&](int b, int c, auto f) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
        for (int y = 0; y < go.height; y++) {
            const float *t = z + gi.at(c, 2 * y, 0) * LANES, *up = g + ho.at(c, y, 0) * LANES;
            for (int x = 0; x < go.width;
                 x++, t += 2 * LANES, up += size_t(ho.step) * LANES, codes += LANES) {
                I code = get_code(codes);
                V chosen = select(code == 1, load(t + LANES), load(t));
                chosen = select(code == 2, load(t + below), chosen);
                chosen = select(code == 3, load(t + below + LANES), chosen);
                f(select(code < 4, load(up), V{}), chosen);
            }
        }
    });
    for (int b = 0; b < p.blocks; b++) {
        const float *g = p.grad(op.out, b), *z = p.value(op.in, b);
        float* out = p.grad(op.in, b);
        const V live = p.live(b);
        for (int c = 0; c < gi.channels; c++) {
            const NormBack n = norm_back(p, op, c);
            const uint8_t* codes = p.code(op, b) + size_t(c) * go.height * go.width * LANES;
            const size_t step = size_t(hi.step) * LANES, next = size_t(hi.columns()) * step;
            for (int y = 0; y < go.height; y++) {
                const float *t = z + gi.at(c, 2 * y, 0) * LANES, *gp = g + ho.at(c, y, 0) * LANES;
                float* to = out + hi.at(c, 2 * y, 0) * LANES;
                for (int x = 0; x < go.width;
                     x++, t += 2 * LANES, gp += size_t(ho.step) * LANES, to += 2 * step, codes += LANES) {
                    const V up = n.a * load(gp);
                    const I code = get_code(codes);
                    auto back = [&](int q, size_t at) {
                        return select(code == q, up, V{}) + n.rest(load(t + at)) * live;
                    };
                    store(to, back(0, 0));
                    store(to + step, back(1, LANES));
                    store(to + next, back(2, below));
                    store(to + next + step, back(3, below + LANES));
                }
            }
            for (int y = 0; y < gi.height; y++)  // an odd last row or column is in no window
                for (int x = y < 2 * go.height ? 2 * go.width : 0; x < gi.width; x++)
                    store(out + hi.at(c, y, x) * LANES, n.rest(load(z + gi.at(c, y, x) * LANES)) * live);
        }
    }
}

static void clear(const Geometry& g, float* at) {
    for (int c = 0; c < g.channels; c++) pixels(g, c, [&](int, int, size_t i) { store(at + i, V{}); });
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

static void backward_window(const Pass& p, const Op& op, int b) {  // max_pool, avg_pool
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

static void backward_conv(const Pass& p, const Op& op, int b) {
    const Tensor &ti = p.tensor(op.in), &to = p.tensor(op.out);
    const float* up = p.grad(op.out, b);
    with_kernel(op, [&](auto k, auto stride) {
        constexpr int K = decltype(k)::value, S = decltype(stride)::value;
        ConvShape s = conv_shape(ti.value, to.grad);
        const float* inner = up + to.grad.at(0, 0, 0) * LANES;
        conv_weights<K, S>(s, p.value(op.in, b), inner, p.partial + op.partial_at * LANES);
        if (op.bias >= 0) {
            float* sums =
                p.partial + (op.partial_at + size_t(s.in_channels) * s.out_channels * K * K) * LANES;
            for (int o = 0; o < s.out_channels; o++) {
                V acc = load(sums + o * LANES);
                pixels(to.grad, o, [&](int, int, size_t at) { acc += load(up + at); });
                store(sums + o * LANES, acc);
            }
        }
        if (!op.input_gradient) return;
        // The gradient of the input: a convolution of the bordered gradient with the turned kernel.
        const Geometry &h = to.grad, &hi = ti.grad;
        const ConvShape back = conv_shape(h, hi);
        float* out = p.grad(op.in, b) + hi.at(0, 0, 0) * LANES;
        if constexpr (K > 1)
            if (op.pairs_back)
                return conv_pairs<K>(back, up, p.combined + op.combined_back_at, nullptr, p.room, out, 0,
                                     hi.height);
        conv_forward<K, 1>(back, up, p.flipped + op.partial_at, nullptr, out, 0, hi.height);
    });
}

static void turn_kernels(const Pass& p) {  // flipped[c][o][K−1−i][K−1−j] = w[o][c][i][j]
    for (int n = 0; n < p.net.op_count; n++) {
        const Op& op = p.net.ops[n];
        if (op.kind != Kind::conv || !op.input_gradient) continue;
        const int ci = p.tensor(op.in).value.channels, co = p.tensor(op.out).value.channels,
                  kk = op.kernel * op.kernel;
        const float* w = p.row + op.weight;
        float* to = p.flipped + op.partial_at;
        for (int o = 0; o < co; o++)
            for (int c = 0; c < ci; c++)
                for (int k = 0; k < kk; k++)
                    to[(size_t(c) * co + o) * kk + kk - 1 - k] = w[(size_t(o) * ci + c) * kk + k];
    }
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
    linear_weights(p.batch.count, inputs, outputs, g, g_block, p.turned, gradient + op.weight);
    if (op.bias >= 0)
        for (int o = 0; o < outputs; o++) {
            V acc = {};
            for (int b = 0; b < p.blocks; b++) acc += load(g + b * g_block + size_t(o) * LANES);
            gradient[op.bias + o] = sum(acc);
        }
    if (!op.input_gradient) return;
    float* out = p.grad(op.in, 0);
    const int plane = gi.height * gi.width;
    linear(p.blocks, outputs, inputs, g, g_block, p.row + op.weight, 1, inputs, nullptr, hi.size() * LANES,
           [&](int k) { return out + hi.at(k / plane, k % plane / gi.width, k % gi.width) * LANES; });
}

static void backward_block(const Pass& p, const Op& op, int b) {
    const Geometry &go = p.tensor(op.out).value, &hi = p.tensor(op.in).grad, &ho = p.tensor(op.out).grad;
    if (op.kind == Kind::conv) return backward_conv(p, op, b);
    if (!op.input_gradient) return;
    switch (op.kind) {
        case Kind::relu_pool:
            return backward_relu_pool(p, op, b);
        case Kind::max_pool:
        case Kind::avg_pool:
            return backward_window(p, op, b);
        case Kind::relu: {
            const float *y = p.value(op.out, b), *g = p.grad(op.out, b);
            float* out = p.grad(op.in, b);
            for (int c = 0; c < go.channels; c++)
                pixels(go, c, [&](int i, int j, size_t at) {
                    store(out + hi.at(c, i, j) * LANES,
                          select(load(y + at) > 0, load(g + ho.at(c, i, j) * LANES), V{}));
                });
            return;
        }
        case Kind::dropout: {
            const uint8_t* mask = p.code(op, b);
            const float keep = 1.f / (1.f - op.rate);
            return map(ho, p.grad(op.out, b), hi, p.grad(op.in, b), [&](V g, int, size_t e) {
                return p.mode != Mode::train ? g : select(get_code(mask + e * LANES) != 0, g * keep, V{});
            });
        }
        default:
            return;
    }
}

static float loss_gradient(const Pass& p) {
    const int last = p.net.ops[p.net.op_count - 1].out;
    const Geometry &g = p.tensor(last).value, &h = p.tensor(last).grad;
    const int classes = p.net.classes;
    double total = 0;
    for (int s = 0; s < p.blocks * LANES; s++) {
        const float* z = p.value(last, s / LANES) + s % LANES;
        float* d = p.grad(last, s / LANES) + s % LANES;
        auto at = [&](const Geometry& geo, int c) { return geo.at(c, 0, 0) * LANES; };
        if (s >= p.batch.count) {
            for (int c = 0; c < classes; c++) d[at(h, c)] = 0;
            continue;
        }
        float top = z[0];
        for (int c = 1; c < classes; c++) top = z[at(g, c)] > top ? z[at(g, c)] : top;
        float norm = 0;
        for (int c = 0; c < classes; c++) norm += d[at(h, c)] = std::exp(z[at(g, c)] - top);
        const int64_t truth = p.batch.labels[p.batch.rows[s]];
        for (int c = 0; c < classes; c++) d[at(h, c)] = (d[at(h, c)] / norm - (c == truth)) / p.batch.count;
        total += std::log(norm) + top - z[at(g, int(truth))];
    }
    return float(total / p.batch.count);
}

static void backward_all(const Pass& p, float* gradient) {
    std::memset(p.partial, 0, p.net.partial_size * LANES * sizeof(float));
    turn_kernels(p);
    combine(p, true);
    for (int i = p.net.op_count - 1; i >= 0;) {
        const Op& op = p.net.ops[i];
        if (op.kind == Kind::linear) {
            backward_linear(p, op, gradient);
            i--;
            continue;
        }
        if (op.kind == Kind::norm) {
            backward_norm(p, op, gradient);
            i--;
            continue;
        }
        if (op.kind == Kind::norm_relu_pool) {
            backward_norm_relu_pool(p, op, gradient);
            i--;
            continue;
        }
        int end = i - 1;
        while (end >= 0 && p.net.ops[end].kind != Kind::linear && !has_statistics(p.net.ops[end])) end--;
        for (int b = 0; b < p.blocks; b++)
            for (int j = i; j > end; j--) backward_block(p, p.net.ops[j], b);
        i = end;
    }
    for (int i = 0; i < p.net.op_count; i++) {
        const Op& op = p.net.ops[i];
        if (op.kind != Kind::conv) continue;
        const int co = p.tensor(op.out).value.channels;
        const size_t count = size_t(co) * p.tensor(op.in).value.channels * op.kernel * op.kernel;
        const float* sums = p.partial + op.partial_at * LANES;
        for (size_t n = 0; n < count; n++) gradient[op.weight + n] = sum(load(sums + n * LANES));
        if (op.bias >= 0)
            for (int o = 0; o < co; o++) gradient[op.bias + o] = sum(load(sums + (count + o) * LANES));
    }
}

// ---- what the engine calls --------------------------------------------------------------------

static Pass make_pass(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                      void* workspace, int capacity) {
    Pass p{net, row, batch, mode, key, capacity, (batch.count + LANES - 1) / LANES};
    lay_out(p, static_cast<char*>(workspace));
    return p;
}

static int capacity_of(const void* workspace) { return *static_cast<const int*>(workspace); }
static char* body_of(void* workspace) { return static_cast<char*>(workspace) + 64; }

static size_t workspace_bytes(const Network& net, int batch) {
    Batch none{};
    Pass p{net, nullptr, none, Mode::train, 0, (batch + LANES - 1) / LANES, 0};
    return 64 + lay_out(p, nullptr);
}

static void forward(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                    void* workspace, float* logits) {
    const Pass p = make_pass(net, row, batch, mode, key, body_of(workspace), capacity_of(workspace));
    forward_all(p);
    const int last = net.ops[net.op_count - 1].out;
    const Geometry& g = p.tensor(last).value;
    for (int s = 0; s < batch.count; s++)
        for (int c = 0; c < net.classes; c++)
            logits[size_t(s) * net.classes + c] = p.value(last, s / LANES)[g.at(c, 0, 0) * LANES + s % LANES];
}

static float gradient(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                      void* workspace, float* out) {
    const Pass p = make_pass(net, row, batch, mode, key, body_of(workspace), capacity_of(workspace));
    forward_all(p);
    const float loss = loss_gradient(p);
    backward_all(p, out);
    return loss;
}

static void update(const Network& net, float* __restrict w, float* __restrict g, const Update& u) {
    const int64_t n = net.trainable;
    if (u.weight_decay != 0)
        for (int64_t i = 0; i < n; i++) g[i] += u.weight_decay * w[i];
    if (u.mu)
        for (int64_t i = 0; i < n; i++) g[i] += u.mu[i] * (w[i] - u.anchor[i]);
    if (u.offset)
        for (int64_t i = 0; i < n; i++) g[i] += u.offset[i];
    float* __restrict v = u.momentum;
    if (u.free) {  // a column that is held still keeps its momentum as well
        for (int64_t i = 0; i < n; i++) {
            if (!u.free[i]) continue;
            if (v) v[i] = u.momentum_factor * v[i] + g[i];
            w[i] -= u.lr * (v ? v[i] : g[i]);
        }
        return;
    }
    if (v)
        for (int64_t i = 0; i < n; i++) {
            v[i] = u.momentum_factor * v[i] + g[i];
            w[i] -= u.lr * v[i];
        }
    else
        for (int64_t i = 0; i < n; i++) w[i] -= u.lr * g[i];
}

extern const Backend backend;
const Backend backend = {WECFL_ISA_NAME, LANES, workspace_bytes, forward, gradient, update};

}  // namespace WECFL_ISA
