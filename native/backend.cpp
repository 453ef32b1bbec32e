// The passes of a network over one mini-batch, compiled once for each instruction set.
//
// Operations that look at one block at a time (all but BatchNorm, linear and recurrent layers) run block by block,
// so that a block's activations stay in the second-level cache from one layer to the next. Lanes beyond the
// batch repeat a sample, carry no loss and are kept out of BatchNorm's sums.
#include "any_conv.h"
#include "attention.h"
#include "convolution.h"
#include "elementwise.h"
#include "group_norm.h"
#include "linear.h"
#include "loss.h"
#include "norm.h"
#include "pooling.h"
#include "recurrent.h"
#include "sequence.h"
#include "sgd.h"

namespace WECFL_ISA {

static void forward_block(const Pass& p, const Op& op, int b) {
    switch (op.kind) {
        case Kind::conv:
            return forward_conv(p, op, b);
        case Kind::any_conv:
            return forward_any_conv(p, op, b);
        case Kind::relu_pool:
            if (!op.fused_in_conv) forward_relu_pool(p, op, b);
            return;
        case Kind::norm_relu_pool:
            return forward_norm_relu_pool(p, op, b);
        case Kind::max_pool:
            return forward_max_pool(p, op, b);
        case Kind::avg_pool:
        case Kind::adaptive_pool:
            return forward_mean_pool(p, op, b);
        case Kind::relu:
            return forward_relu(p, op, b);
        case Kind::activation:
            return forward_activation(p, op, b);
        case Kind::norm:
            return forward_norm(p, op, b);
        case Kind::group_norm:
            return forward_group_norm(p, op, b);
        case Kind::layer_norm:
            return forward_layer_norm(p, op, b);
        case Kind::add:
            return forward_add(p, op, b);
        case Kind::place:
            return forward_place(p, op, b);
        case Kind::dropout:
            return forward_dropout(p, op, b);
        case Kind::step:
            return forward_step(p, op, b);
        case Kind::time_mean:
            return forward_time_mean(p, op, b);
        case Kind::attention:
            return forward_attention(p, op, b);
        default:  // those that look at all blocks at once: forward_whole
            return;
    }
}

static bool is_whole(const Op& op) {
    return op.kind == Kind::linear || op.kind == Kind::embedding || op.kind == Kind::gru || op.kind == Kind::lstm;
}

static void forward_whole(const Pass& p, const Op& op) {
    switch (op.kind) {
        case Kind::embedding:
            return forward_embedding(p, op);
        case Kind::gru:
            return forward_recurrent<Gru>(p, op);
        case Kind::lstm:
            return forward_recurrent<Lstm>(p, op);
        default:
            return op.by_column ? forward_linear_steps(p, op) : forward_linear(p, op);
    }
}

static void backward_whole(const Pass& p, const Op& op, float* gradient) {
    switch (op.kind) {
        case Kind::embedding:
            return backward_embedding(p, op, gradient);
        case Kind::gru:
            return backward_recurrent<Gru>(p, op, gradient);
        case Kind::lstm:
            return backward_recurrent<Lstm>(p, op, gradient);
        default:
            return op.by_column ? backward_linear_steps(p, op, gradient) : backward_linear(p, op, gradient);
    }
}

static bool has_statistics(const Op& op) { return op.kind == Kind::norm || op.kind == Kind::norm_relu_pool; }

static void forward_all(const Pass& p) {
    if (!p.batch.before) combine(p, false);
    for (int b = 0; b < p.blocks; b++) gather(p, b);
    for (int i = 0; i < p.net.op_count;) {
        const Op& op = p.net.ops[i];
        if (is_whole(op)) {
            forward_whole(p, op);
            i++;
            continue;
        }
        if (has_statistics(op)) measure(p, op);
        int end = i + 1;  // up to the next operation that needs all blocks
        while (end < p.net.op_count && !is_whole(p.net.ops[end]) && !has_statistics(p.net.ops[end])) end++;
        for (int b = 0; b < p.blocks; b++)
            for (int j = i; j < end; j++) forward_block(p, p.net.ops[j], b);
        i = end;
    }
}

static void backward_block(const Pass& p, const Op& op, int b) {
    switch (op.kind) {  // those with parameters look themselves whether their input needs a gradient
        case Kind::conv:
            return backward_conv(p, op, b);
        case Kind::any_conv:
            return backward_any_conv(p, op, b);
        case Kind::group_norm:
            return backward_group_norm(p, op, b);
        case Kind::layer_norm:
            return backward_layer_norm(p, op, b);
        case Kind::add:
            return backward_add(p, op, b);
        default:
            if (!op.input_gradient) return;
    }
    switch (op.kind) {
        case Kind::relu_pool:
            return backward_relu_pool(p, op, b);
        case Kind::max_pool:
        case Kind::avg_pool:
        case Kind::adaptive_pool:
            return backward_window(p, op, b);
        case Kind::relu:
            return backward_relu(p, op, b);
        case Kind::activation:
            return backward_activation(p, op, b);
        case Kind::place:
            return backward_place(p, op, b);
        case Kind::fork:
            return backward_fork(p, op, b);
        case Kind::dropout:
            return backward_dropout(p, op, b);
        case Kind::step:
            return backward_step(p, op, b);
        case Kind::time_mean:
            return backward_time_mean(p, op, b);
        case Kind::attention:
            return backward_attention(p, op, b);
        default:  // BatchNorm and those of backward_whole look at all blocks at once
            return;
    }
}

static void backward_all(const Pass& p) {
    float* gradient = p.gradient;
    if (!p.batch.before) {
        std::memset(p.partial, 0, p.net.partial_size * LANES * sizeof(float));
        std::memset(p.square_sums, 0, p.net.square_sums_size * sizeof(float));
        for (int i = 0; i < p.net.op_count; i++)
            if (const Op& op = p.net.ops[i]; op.any) std::fill_n(gradient + op.weight, op.any->weights(), 0.f);
        turn_kernels(p);
        combine(p, true);
    }
    for (int i = p.net.op_count - 1; i >= 0;) {
        const Op& op = p.net.ops[i];
        if (is_whole(op)) {
            backward_whole(p, op, gradient);
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
        while (end >= 0 && !is_whole(p.net.ops[end]) && !has_statistics(p.net.ops[end])) end--;
        for (int b = 0; b < p.blocks; b++)
            for (int j = i; j > end; j--) backward_block(p, p.net.ops[j], b);
        i = end;
    }
    if (p.batch.after) return;
    reduce_partial_sums(p, gradient);
    reduce_square_sums(p, gradient);
}

// ---- what the engine calls --------------------------------------------------------------------

static Pass make_pass(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                      const Workspace& workspace) {
    Pass p{net, row, batch, mode, key, workspace.capacity, (batch.count + LANES - 1) / LANES};
    lay_out(p, static_cast<char*>(workspace.memory));
    return p;
}

// Tensors that a second-level cache does not hold are used again for each block: a ResNet-8 then goes through half the
// memory. Linear layers read and write the gradients of their weights once for each part, so they must be the smaller.
static int capacity(const Network& net, int samples) {
    const size_t tensors = net.tensors_size * LANES, second_level = (size_t(1) << 20) / sizeof(float);
    const bool small_parts = net.separable && tensors > second_level && net.linear_weights < tensors;
    return small_parts ? 1 : (samples + LANES - 1) / LANES;
}

// f(part) for all parts of a batch that a workspace has room for.
template <class F>
static void in_parts(const Network& net, const Batch& batch, const Workspace& workspace, F f) {
    for (int first = 0; first < batch.count;) {
        Batch part = batch;
        part.count = std::min(batch.count - first, workspace.capacity * LANES);
        part.before = first;
        part.rows += first;
        if (part.weights) part.weights += first;
        if (part.bias) part.bias += size_t(first) * net.classes;
        first += part.count;
        part.after = batch.count - first;
        f(part);
    }
}

static size_t workspace_bytes(const Network& net, int capacity) {
    Batch none{};
    Pass p{net, nullptr, none, Mode::train, 0, capacity, 0};
    return lay_out(p, nullptr);
}

static void forward(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                    const Workspace& workspace, float* logits) {
    in_parts(net, batch, workspace, [&](const Batch& part) {
        const Pass p = make_pass(net, row, part, mode, key, workspace);
        forward_all(p);
        const int last = net.output;
        const Geometry& g = p.tensor(last).value;
        for (int s = 0; s < part.count; s++)
            for (int c = 0; c < net.classes; c++)
                *logits++ = p.value(last, s / LANES)[g.at(c, 0, 0) * LANES + s % LANES];
    });
}

static void gradient(const Network& net, float* row, const Batch& batch, Mode mode, uint64_t key,
                     const Workspace& workspace, float* out) {
    in_parts(net, batch, workspace, [&](const Batch& part) {
        Pass p = make_pass(net, row, part, mode, key, workspace);
        p.gradient = out;
        forward_all(p);
        loss_gradient(p);
        backward_all(p);
    });
}

extern const Backend backend;
const Backend backend = {WECFL_ISA_NAME, LANES, capacity, workspace_bytes, forward, gradient, update};

}  // namespace WECFL_ISA
