// From layers to operations on tensors, and their places in memory.
#include "planner.h"

#include <algorithm>
#include <limits>

namespace wecfl {

// What the layers make: value 0 are the samples, value i + 1 is the output of layer i.
struct Plan::Values {
    std::vector<Shape> shapes;
    std::vector<int> tensor;   // of values made so far
    std::vector<int> source;              // the value itself, or what it is a flattened form of
    std::vector<int> readers, last_reader;  // of sources: how many layers, and which; the loss counts as one
    std::vector<std::vector<int>> reads;  // of layers

    // Whether layer i + 1 is of this kind, reads layer i and nobody else does.
    bool followed_by(const std::vector<Layer>& layers, size_t i, const char* kind) const {
        return i + 1 < layers.size() && layers[i + 1].kind == kind && readers[source[i + 1]] == 1 &&
               last_reader[source[i + 1]] == int(i) + 1;
    }
};

Plan::Plan(const std::vector<Layer>& layers, const std::vector<int>& sample_shape, int classes,
           int64_t trainable, int64_t width, const std::string& loss, std::vector<float> weights,
           float smoothing)
    : weights_(std::move(weights)) {
    net_.trainable = trainable, net_.width = width, net_.classes = classes;
    const bool weighted = loss == "weighted cross-entropy";
    demand(weighted || loss == "cross-entropy" || loss == "squares", "there is no loss '" + loss + "'");
    demand(weights_.size() == size_t(weighted ? classes : 0), "weights need one entry per class");
    demand(smoothing >= 0 && smoothing < 1, "smoothing must lie in [0, 1)");
    net_.loss = {weighted ? Loss::weighted : loss == "squares" ? Loss::squares : Loss::plain,
                 weights_.data(), smoothing};
    const size_t count = layers.size();
    Values values;
    values.shapes = {Shape::of_samples(sample_shape)};
    values.source = {0};
    values.readers.resize(count + 1), values.last_reader.resize(count + 1, -1);
    for (size_t i = 0; i < count; i++) {
        const Layer& layer = layers[i];
        const std::string unnamed = "layer " + std::to_string(i) + " (" + layer.kind + ")";
        const std::string& place = layer.place.empty() ? unnamed : layer.place;
        values.reads.push_back(layer.reads.empty() ? std::vector<int>{int(i)} : layer.reads);
        std::vector<Shape> inputs;
        for (int value : values.reads.back()) {
            demand(value >= 0 && value <= int(i), place + " reads a value that is not there yet");
            inputs.push_back(values.shapes[value]);
            if (layer.kind == "flatten") continue;
            values.readers[values.source[value]]++, values.last_reader[values.source[value]] = int(i);
        }
        values.source.push_back(layer.kind == "flatten" ? values.source[values.reads.back()[0]] : int(i) + 1);
        values.shapes.push_back(shape_after(layer, place, inputs, trainable, width));
    }
    values.readers[values.source[count]]++;
    const Shape& last = values.shapes.back();
    demand(count && last.form == Shape::flat && last.count() == classes && last.channels == classes,
           "the last layer must give " + std::to_string(classes) + " numbers, one for each output");
    values.tensor = {new_tensor(values.shapes.front())};
    for (size_t i = 0; i < count;) i += add(layers, values, i);
    net_.output = values.tensor.back();
    demand(std::any_of(ops_.begin(), ops_.end(), [](const Op& op) { return op.weight >= 0; }),
           "the last layer must give something that is learned");
    set_borders();
    find_needed_gradients();
    fork_tensors();
    share_gradients();
    assign_memory();
}

int Plan::new_tensor(const Shape& shape) {
    const Geometry geometry{shape.channels, shape.height, shape.width};
    tensors_.push_back({geometry, geometry});
    return int(tensors_.size()) - 1;
}

// Adds the operation for layer i, and for those after it that it can do as well; how many layers that are.
size_t Plan::add(const std::vector<Layer>& layers, Values& values, size_t i) {
    const Layer& layer = layers[i];
    const auto halving = [&](size_t at) {  // a 2 × 2 maximum
        const Layer& pool = layers[at];
        return pool.kernel == Pair{2, 2} && pool.stride == Pair{2, 2} && pool.pad == Pair{0, 0} && !pool.ceil &&
               values.shapes[at].can_be_halved();
    };
    const Shape& in = values.shapes[values.reads[i][0]];
    Op op{};
    op.in = values.tensor[values.reads[i][0]];
    if (layer.kind == "flatten") {
        values.tensor.push_back(op.in);
        return 1;
    }
    const auto sides = [](const Pair& pair) { return Sides{int(pair[0]), int(pair[1])}; };
    op.kernel = sides(layer.kernel), op.stride = sides(layer.stride), op.pad = sides(layer.pad);
    op.dilation = sides(layer.dilation), op.groups = int(layer.groups), op.count_padding = layer.count_padding;
    op.weight = layer.weight, op.bias = layer.bias, op.mean = layer.mean, op.variance = layer.variance;
    op.inner_weight = layer.inner_weight, op.inner_bias = layer.inner_bias, op.reverse = layer.reverse;
    op.causal = layer.causal;
    op.eps = layer.eps, op.momentum = layer.momentum, op.rate = layer.rate;
    size_t used = 1;
    const bool relu_next = values.followed_by(layers, i, "relu");
    if (layer.kind == "conv") {
        const int k = op.kernel.y;
        const bool usual = (k == 3 || k == 5 || k == 7) && op.kernel.x == k && op.stride == Sides{1, 1} &&
                           op.dilation == Sides{1, 1} && op.groups == 1 && op.pad.y == op.pad.x && op.pad.y < k;
        op.kind = usual ? Kind::conv : Kind::any_conv;
    } else if (layer.kind == "norm" || layer.kind == "group_norm") {
        op.kind = layer.kind == "norm" ? Kind::norm : Kind::group_norm;
        if (relu_next) op.relu = true, used = 2;
        if (relu_next && op.kind == Kind::norm && values.followed_by(layers, i + 1, "max_pool") && halving(i + 2))
            op.kind = Kind::norm_relu_pool, used = 3;
    } else if (layer.kind == "layer_norm") {
        op.kind = Kind::layer_norm;
        op.by_column = layer.inputs != in.count();
        op.groups = op.by_column ? in.channels * in.height : 1;
    } else if (layer.kind == "relu") {
        op.kind = Kind::relu;
        if (values.followed_by(layers, i, "max_pool") && halving(i + 1)) op.kind = Kind::relu_pool, used = 2;
    } else if (layer.kind == "max_pool") {
        op.kind = Kind::max_pool;
    } else if (layer.kind == "avg_pool") {
        op.kind = Kind::avg_pool;
    } else if (layer.kind == "adaptive_pool") {
        op.kind = Kind::adaptive_pool;
    } else if (layer.kind == "linear") {
        op.kind = Kind::linear;
        op.by_column = in.form == Shape::plane;
    } else if (layer.kind == "embedding") {
        op.kind = Kind::embedding;
        op.number = layer.number, op.table_rows = layer.inputs;
        demand(op.in == 0, (layer.place.empty() ? layer.kind : layer.place) + " reads something else than the samples");
        tokens_ = tokens_ ? std::min(tokens_, layer.inputs) : layer.inputs;
    } else if (layer.kind == "gru" || layer.kind == "lstm") {
        op.kind = layer.kind == "gru" ? Kind::gru : Kind::lstm;
    } else if (layer.kind == "attention") {
        op.kind = Kind::attention;
    } else if (layer.kind == "step") {
        op.kind = Kind::step;
        op.number = layer.number < 0 ? in.height + layer.number : layer.number;
    } else if (layer.kind == "time_mean") {
        op.kind = Kind::time_mean;
    } else if (layer.kind == "dropout") {
        op.kind = Kind::dropout;
    } else if (layer.kind == "concat") {
        add_concatenation(values, i);
        return 1;
    } else if (layer.kind == "add") {
        op.kind = Kind::add;
        op.other = values.tensor[values.reads[i][1]];
        if (relu_next) op.relu = true, used = 2;
        // A norm whose output only the addition reads does it as well, and moves here: both inputs are there.
        for (int n = 0; n < 2; n++) {
            const int mine = n ? op.other : op.in, other = n ? op.in : op.other;
            const auto norm = std::find_if(ops_.begin(), ops_.end(), [&](const Op& o) { return o.out == mine; });
            if (norm == ops_.end() || values.readers[values.source[values.reads[i][n]]] != 1 || norm->relu || norm->other >= 0 ||
                (norm->kind != Kind::norm && norm->kind != Kind::group_norm))
                continue;
            Op fused = *norm;
            ops_.erase(norm);
            fused.other = other, fused.relu = op.relu;
            ops_.push_back(fused);
            while (used + i + 1 > values.tensor.size()) values.tensor.push_back(mine);
            return used;
        }
    } else {
        op.kind = Kind::activation;
        const char* names[] = {"leaky_relu", "elu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh"};
        op.function = Function(std::find(std::begin(names), std::end(names), layer.kind) - names);
    }
    op.out = new_tensor(values.shapes[i + used]);
    while (used + i + 1 > values.tensor.size()) values.tensor.push_back(op.out);
    ops_.push_back(op);
    return used;
}

void Plan::add_concatenation(Values& values, size_t i) {
    Op op{};
    op.kind = Kind::place;
    op.out = new_tensor(values.shapes[i + 1]);
    for (int value : values.reads[i]) {
        const Shape& shape = values.shapes[value];
        op.in = values.tensor[value];
        ops_.push_back(op);
        if (shape.form == Shape::plane) op.column += shape.width;
        else op.channel += shape.channels;
    }
    values.tensor.push_back(op.out);
}

// Convolutions want zeros around what they read, and around the gradient that comes back. A linear layer wants
// none, so it gets a copy if a convolution reads the same tensor.
void Plan::set_borders() {
    for (const Op& op : ops_)
        if (op.kind == Kind::conv || op.kind == Kind::any_conv) {
            Tensor &in = tensors_[op.in], &out = tensors_[op.out];
            in.value.border = std::max({in.value.border, op.pad.y, op.pad.x});
            out.grad.border = op.kind == Kind::conv ? op.kernel.y - 1 - op.pad.y
                                                    : AnyConvTables::border(op, in.value, out.value);
        }
    for (size_t i = 0; i < ops_.size(); i++) {
        const Geometry in = tensors_[ops_[i].in].value;
        if (ops_[i].kind != Kind::linear || !in.border) continue;
        Op copy{};
        copy.kind = Kind::place;
        copy.in = ops_[i].in;
        copy.out = ops_[i].in = new_tensor({in.channels, in.height, in.width, Shape::image});
        ops_.insert(ops_.begin() + i, copy);
    }
}

// Nothing before the first parameters needs a gradient.
void Plan::find_needed_gradients() {
    needs_gradient_.resize(tensors_.size());
    for (Op& op : ops_) {
        op.input_gradient = needs_gradient_[op.in];
        if (op.input_gradient || op.weight >= 0 || op.bias >= 0 || (op.other >= 0 && needs_gradient_[op.other]))
            needs_gradient_[op.out] = true;
    }
}

// The first reader of a tensor writes its gradient; each further one gets a tensor with the same numbers and a
// gradient of its own, which a fork adds to the first.
void Plan::fork_tensors() {
    value_of_.resize(tensors_.size());
    for (size_t t = 0; t < tensors_.size(); t++) value_of_[t] = int(t);
    std::vector<bool> read(tensors_.size());
    std::vector<Op> forks;
    read[net_.output] = true;  // by the loss
    const auto reads = [&](int& tensor) {
        if (!needs_gradient_[tensor]) return;
        if (!read[tensor]) {
            read[tensor] = true;
            return;
        }
        Op fork{};
        fork.kind = Kind::fork;
        fork.in = tensor;
        const Geometry value = tensors_[tensor].value;
        tensors_.push_back({value, {value.channels, value.height, value.width}});
        needs_gradient_.push_back(true), value_of_.push_back(tensor);
        tensor = fork.out = int(tensors_.size()) - 1;
        forks.push_back(fork);
    };
    for (Op& op : ops_)  // additions last: they can share the memory of a further reader's gradient
        if (op.kind != Kind::add) reads(op.in);
    for (Op& op : ops_) {
        if (op.kind == Kind::add) reads(op.in);
        if (op.other >= 0) reads(op.other);
    }
    std::vector<Op> ops;
    for (size_t i = 0; i < ops_.size(); i++) {
        ops.push_back(ops_[i]);
        if (i + 1 < ops_.size() && ops_[i + 1].out == ops_[i].out) continue;  // parts of a concatenation
        for (const Op& fork : forks)
            if (fork.in == ops_[i].out) ops.push_back(fork);
    }
    ops_ = std::move(ops);
}

}  // namespace wecfl
