#include "planner.h"

#include <algorithm>
#include <limits>

namespace wecfl {

// The shape of a sample on its way through the layers. Flattening changes the form alone: numbers stay
// where they are, and a linear layer reads all of them.
struct Plan::Shape {
    enum Form { flat, plane, image };  // features; height and width; channels, height and width
    int channels, height, width;
    Form form;

    int64_t count() const { return int64_t(channels) * height * width; }
    std::string sides() const { return std::to_string(height) + " × " + std::to_string(width); }
    bool can_be_halved() const { return height >= 2 && width >= 2; }
};

// ---- the rules --------------------------------------------------------------------------------

Plan::Shape Plan::sample(const std::vector<int>& sizes) {
    demand(!sizes.empty() && sizes.size() <= 3,
           "samples have " + std::to_string(sizes.size()) + " dimensions; the native engine takes 1 to 3");
    demand(std::all_of(sizes.begin(), sizes.end(), [](int size) { return size > 0; }),
           "samples must have at least one number along each dimension");
    int64_t count = 1;
    for (int size : sizes) demand((count *= size) <= std::numeric_limits<int>::max(), "samples are too large");
    if (sizes.size() == 1) return {sizes[0], 1, 1, Shape::flat};
    if (sizes.size() == 2) return {1, sizes[0], sizes[1], Shape::plane};
    return {sizes[0], sizes[1], sizes[2], Shape::image};
}

// The shape that a layer makes of its input. Every rule is here, and each is one sentence about the layer.
Plan::Shape Plan::after(const Layer& layer, const std::string& place, Shape in) const {
    const auto text = [](int64_t number) { return std::to_string(number); };
    const auto rule = [&](bool ok, const std::string& sentence) { demand(ok, place + " " + sentence); };
    const auto columns = [&](int64_t first, int64_t count, int64_t limit, const char* name) {
        rule(first >= 0 && first <= limit - count, std::string("has its ") + name + " outside of the row");
    };
    const auto weight_and_bias = [&](int64_t weights, int64_t biases) {
        columns(layer.weight, weights, net_.trainable, "weight");
        if (layer.bias >= 0) columns(layer.bias, biases, net_.trainable, "bias");
    };
    const auto expects = [&](int64_t inputs, const char* what) {
        rule(layer.inputs < 0 || layer.inputs == inputs,
             "expects " + text(layer.inputs) + " " + what + ", but its input has " + text(inputs));
    };
    const auto needs_image = [&] {
        rule(in.form == Shape::image, std::string("needs images with channels, but its input ") +
                                          (in.form == Shape::flat ? "is flat" : "has none"));
    };
    const auto window = [&] {  // kernel and padding are small: each kind of layer limits them first
        const int pad = int(layer.pad), kernel = int(layer.kernel);
        rule(layer.stride >= 1 && layer.stride <= std::numeric_limits<int>::max(),
             "has a stride of " + text(layer.stride) + "; it must be at least 1");
        rule(int64_t(in.height) + 2 * pad >= kernel && int64_t(in.width) + 2 * pad >= kernel,
             "has a kernel of " + text(kernel) + ", larger than its input of " + in.sides() +
                 " with a padding of " + text(pad));
        in.height = int((int64_t(in.height) + 2 * pad - kernel) / layer.stride + 1);
        in.width = int((int64_t(in.width) + 2 * pad - kernel) / layer.stride + 1);
    };

    if (layer.kind == "conv") {
        const int64_t kernel = layer.kernel;
        needs_image();
        expects(in.channels, "channels");
        rule(layer.outputs > 0, "has no output channel");
        rule(kernel == 1 || kernel == 3 || kernel == 5 || kernel == 7,
             "has a kernel of " + text(kernel) + "; the native engine knows 1, 3, 5 and 7");
        rule(layer.stride == 1 || layer.stride == 2,
             "has a stride of " + text(layer.stride) + "; the native engine knows 1 and 2");
        rule(layer.pad >= 0 && layer.pad < kernel, "has a padding of " + text(layer.pad) +
                                                       "; it must be smaller than the kernel of " +
                                                       text(kernel));
        rule(layer.stride == 1 || in.height % 2 == in.width % 2,
             "has a stride of 2 on an input of " + in.sides() +
                 "; the native engine needs both sides odd or both even");
        weight_and_bias(int64_t(layer.outputs) * in.channels * kernel * kernel, layer.outputs);
        window();
        in.channels = layer.outputs;
    } else if (layer.kind == "norm") {
        needs_image();
        expects(in.channels, "channels");
        columns(layer.mean, in.channels, net_.width, "running mean");
        columns(layer.variance, in.channels, net_.width, "running variance");
        if (layer.weight >= 0) columns(layer.weight, in.channels, net_.trainable, "weight");
        if (layer.bias >= 0) columns(layer.bias, in.channels, net_.trainable, "bias");
    } else if (layer.kind == "max_pool" || layer.kind == "avg_pool") {
        needs_image();
        rule(layer.kernel >= 1 && layer.kernel <= 15,  // a winner's number must fit a byte
             "has a kernel of " + text(layer.kernel) + "; the native engine pools over 1 to 15");
        rule(layer.pad >= 0 && layer.pad <= layer.kernel / 2,
             "has a padding of " + text(layer.pad) + "; it must be at most half the kernel of " +
                 text(layer.kernel));
        window();
    } else if (layer.kind == "linear") {
        rule(in.form == Shape::flat, "needs flat samples, but its input was not flattened");
        expects(in.count(), "inputs");
        rule(layer.outputs > 0, "has no output");
        weight_and_bias(layer.outputs * in.count(), layer.outputs);
        in = {layer.outputs, 1, 1, Shape::flat};
    } else if (layer.kind == "dropout") {
        rule(layer.rate >= 0 && layer.rate < 1, "must drop a share of at least 0 and below 1");
    } else if (layer.kind == "flatten") {
        in.form = Shape::flat;
    } else {
        rule(layer.kind == "relu", "is of the unknown kind '" + layer.kind + "'");
    }
    return in;
}

// ---- from layers to operations ----------------------------------------------------------------

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
    std::vector<Shape> shapes{sample(sample_shape)};  // shapes[i]: the input of layer i
    for (size_t i = 0; i < layers.size(); i++) {
        const Layer& layer = layers[i];
        const std::string unnamed = "layer " + std::to_string(i) + " (" + layer.kind + ")";
        shapes.push_back(after(layer, layer.place.empty() ? unnamed : layer.place, shapes.back()));
    }
    const Shape& in = shapes.front();
    tensors_.push_back({{in.channels, in.height, in.width}, {in.channels, in.height, in.width}});
    for (size_t i = 0; i < layers.size();) i += add(layers, shapes, i);
    demand(!ops_.empty() && ops_.back().kind == Kind::linear && shapes.back().channels == classes,
           "the last layer must be linear with " + std::to_string(classes) + " outputs");
    skip_needless_gradients();
    assign_memory();
}

// Adds the operation for layer i, and for those after it that it can do as well; how many layers that are.
size_t Plan::add(const std::vector<Layer>& layers, const std::vector<Shape>& shapes, size_t i) {
    const Layer& layer = layers[i];
    if (layer.kind == "flatten") return 1;
    const auto relu_at = [&](size_t at) { return at < layers.size() && layers[at].kind == "relu"; };
    const auto halving_at = [&](size_t at) {  // a 2 × 2 maximum
        return at < layers.size() && layers[at].kind == "max_pool" && layers[at].kernel == 2 &&
               layers[at].stride == 2 && layers[at].pad == 0;
    };
    const Shape &in = shapes[i], &after_it = shapes[i + 1];
    Op op{};
    op.in = int(tensors_.size()) - 1;
    op.out = op.in + 1;
    op.kernel = int(layer.kernel), op.stride = int(layer.stride), op.pad = int(layer.pad);
    op.weight = layer.weight, op.bias = layer.bias, op.mean = layer.mean, op.variance = layer.variance;
    op.eps = layer.eps, op.momentum = layer.momentum, op.rate = layer.rate;
    size_t used = 1;
    int border = 0, step = 1, slack = 0;  // of the gradient that comes back
    if (layer.kind == "conv") {
        op.kind = Kind::conv;
        tensors_.back().value.border = op.pad;
        border = op.kernel - 1 - op.pad;
        step = op.stride;
        slack = in.height + 2 * op.pad - op.kernel - (after_it.height - 1) * op.stride;
        if (relu_at(i + 1) && halving_at(i + 2) && after_it.can_be_halved())
            op.fused_pool = int(ops_.size()) + 1;
    } else if (layer.kind == "norm") {
        op.kind = Kind::norm;
        if (relu_at(i + 1) && halving_at(i + 2) && in.can_be_halved())
            op.kind = Kind::norm_relu_pool, used = 3;
    } else if (layer.kind == "relu") {
        op.kind = Kind::relu;
        if (halving_at(i + 1) && in.can_be_halved()) {
            op.kind = Kind::relu_pool, used = 2;
            op.fused_in_conv = !ops_.empty() && ops_.back().fused_pool == int(ops_.size());
        }
    } else if (layer.kind == "max_pool") {
        op.kind = Kind::max_pool;
    } else if (layer.kind == "avg_pool") {
        op.kind = Kind::avg_pool;
    } else if (layer.kind == "linear") {
        op.kind = Kind::linear;
    } else {
        op.kind = Kind::dropout;
    }
    const Shape& out = shapes[i + used];
    tensors_.push_back({{out.channels, out.height, out.width},
                        {out.channels, out.height, out.width, border, step, slack}});
    ops_.push_back(op);
    return used;
}

// Nothing before the first parameters needs a gradient.
void Plan::skip_needless_gradients() {
    ops_.front().input_gradient = false;
    for (size_t i = 1; i < ops_.size(); i++)
        if (!ops_[i - 1].input_gradient && ops_[i - 1].weight < 0) ops_[i].input_gradient = false;
}

// Whether winograd.h is worth it: few channels leave too much beside the products. Makes room for it.
bool Plan::by_pairs(int kernel, int stride, const Geometry& in, const Geometry& out) {
    if (kernel == 1 || stride != 1 || in.channels < 6 || out.channels < 4) return false;
    const size_t columns = out.width + kernel - 1, count = products(kernel);
    net_.combined_size += count * kernel * in.channels * out.channels;
    net_.room_size =
        std::max(net_.room_size, count * in.channels * columns + 2 * size_t(out.channels) * out.width);
    return true;
}

// Gives every tensor and operation its place in the workspace.
void Plan::assign_memory() {
    for (Tensor& t : tensors_) {
        t.value_at = net_.tensors_size;
        t.grad_at = t.value_at + t.value.size();
        net_.tensors_size = t.grad_at + t.grad.size();
    }
    for (Op& op : ops_) {
        const Geometry &in = tensors_[op.in].value, &out = tensors_[op.out].value;
        op.partial_at = net_.partial_size;
        if (op.kind == Kind::conv) {
            net_.partial_size += size_t(out.channels) * (in.channels * op.kernel * op.kernel + 1);
            net_.rows_size = std::max(net_.rows_size, size_t(2) * out.channels * out.width);
            op.combined_at = net_.combined_size;
            op.pairs = by_pairs(op.kernel, op.stride, in, out);
            op.combined_back_at = net_.combined_size;
            op.pairs_back = op.input_gradient && by_pairs(op.kernel, 1, out, in);
        }
        op.codes_at = net_.codes_size;
        net_.codes_size += size_t(out.channels) * out.height * out.width;
        op.statistics_at = net_.statistics_size;
        if (op.kind == Kind::norm || op.kind == Kind::norm_relu_pool)
            net_.statistics_size += 4 * size_t(in.channels);
        if (op.kind == Kind::linear) net_.turned_size = std::max(net_.turned_size, in.size());
    }
    net_.flipped_size = net_.partial_size;
    net_.ops = ops_.data(), net_.op_count = int(ops_.size());
    net_.tensors = tensors_.data();
}

}  // namespace wecfl
