// The rules: which layers the kernels run on which inputs, and the shapes that they make.
#include <algorithm>
#include <limits>

#include "planner.h"

namespace wecfl {
namespace {

constexpr int64_t LARGEST_WINDOW = 4096;  // of a kernel, padding or dilation: keeps sums far from overflow
constexpr int64_t LARGEST_STRIDE = 64;
constexpr int64_t LONGEST_ATTENTION = 512;  // its shares are kept: steps² vectors for each head and block
constexpr int64_t LARGEST_TOKEN = 1 << 24;  // float32 holds whole numbers up to it

std::string text(int64_t number) { return std::to_string(number); }
std::string text(const Pair& sides) {
    return sides[0] == sides[1] ? text(sides[0]) : text(sides[0]) + " × " + text(sides[1]);
}

// One layer on its inputs.
struct Rules {
    const Layer& layer;
    const std::string& place;
    Shape in;
    int64_t trainable, width;

    void rule(bool ok, const std::string& sentence) const { demand(ok, place + " " + sentence); }
    void columns(int64_t first, int64_t count, int64_t limit, const char* name) const {
        rule(first >= 0 && first <= limit - count, std::string("has its ") + name + " outside of the row");
    }
    void weight_and_bias(int64_t weights, int64_t biases) const {
        columns(layer.weight, weights, trainable, "weight");
        if (layer.bias >= 0) columns(layer.bias, biases, trainable, "bias");
    }
    void scale_and_shift(int64_t count) const {  // which a norm may lack
        if (layer.weight >= 0) columns(layer.weight, count, trainable, "weight");
        if (layer.bias >= 0) columns(layer.bias, count, trainable, "bias");
    }
    void expects(int64_t inputs, const char* what) const {
        rule(layer.inputs < 0 || layer.inputs == inputs,
             "expects " + text(layer.inputs) + " " + what + ", but its input has " + text(inputs));
    }
    void needs_image() const {
        rule(in.form == Shape::image, std::string("needs images with channels, but its input ") +
                                          (in.form == Shape::flat ? "is flat" : "has none"));
    }
    void within(const Pair& sides, int64_t least, int64_t most, const char* name) const {
        for (int64_t side : sides)
            rule(side >= least && side <= most, std::string("has a ") + name + " of " + text(sides) +
                                                    "; it must be " + text(least) + " to " + text(most));
    }
    // How many windows there are along a side, as torch counts them.
    int windows(int size, int side) const {
        const int64_t reach = layer.dilation[side] * (layer.kernel[side] - 1) + 1;
        const int64_t room = size + 2 * layer.pad[side] - reach, stride = layer.stride[side];
        rule(room >= 0, "has a kernel of " + text(layer.kernel) + ", larger than its input of " + in.sides() +
                            " with a padding of " + text(layer.pad));
        int64_t count = (room + (layer.ceil ? stride - 1 : 0)) / stride + 1;
        if (layer.ceil && (count - 1) * stride >= size + layer.pad[side]) count--;  // it would begin outside
        return int(count);
    }
    void slide() {
        within(layer.kernel, 1, LARGEST_WINDOW, "kernel"), within(layer.stride, 1, LARGEST_STRIDE, "stride");
        within(layer.pad, 0, LARGEST_WINDOW, "padding"), within(layer.dilation, 1, LARGEST_WINDOW, "dilation");
        const int height = windows(in.height, 0), wide = windows(in.width, 1);
        in.height = height, in.width = wide;
    }

    void convolve() {
        needs_image();
        expects(in.channels, "channels");
        rule(layer.outputs > 0, "has no output channel");
        rule(layer.groups >= 1 && in.channels % layer.groups == 0 && layer.outputs % layer.groups == 0,
             "has " + text(layer.groups) + " groups, which must divide its " + text(in.channels) +
                 " input and " + text(layer.outputs) + " output channels");
        const int64_t inputs = in.channels / layer.groups;
        slide();
        const int64_t weights = layer.outputs * inputs * layer.kernel[0] * layer.kernel[1];
        rule(weights <= std::numeric_limits<int32_t>::max(), "has too many weights");
        weight_and_bias(weights, layer.outputs);
        in.channels = layer.outputs;
    }
    void normalize_batch() const {
        needs_image();
        expects(in.channels, "channels");
        columns(layer.mean, in.channels, width, "running mean");
        columns(layer.variance, in.channels, width, "running variance");
        scale_and_shift(in.channels);
    }
    void normalize_groups() const {
        needs_image();
        expects(in.channels, "channels");
        rule(layer.groups >= 1 && in.channels % layer.groups == 0,
             "has " + text(layer.groups) + " groups, which must divide its " + text(in.channels) + " channels");
        rule(in.count() / layer.groups > 1, "needs more than one value per group");
        scale_and_shift(in.channels);
    }
    void normalize_layer() const {
        rule(layer.inputs == in.count() || (in.form != Shape::flat && layer.inputs == in.width),
             "normalizes " + text(layer.inputs) + " numbers; the native engine normalizes a whole sample of " +
                 text(in.count()) + " or its last dimension");
        scale_and_shift(layer.inputs);
    }
    void pool() {
        needs_image();
        for (int side = 0; side < 2; side++) {
            const int64_t most = layer.kind == "max_pool" ? 15 : LARGEST_WINDOW;  // a winner's number fits a byte
            rule(layer.kernel[side] >= 1 && layer.kernel[side] <= most,
                 "has a kernel of " + text(layer.kernel) + "; the native engine pools over 1 to " + text(most));
            rule(layer.pad[side] >= 0 && layer.pad[side] <= layer.kernel[side] / 2,
                 "has a padding of " + text(layer.pad) + "; it must be at most half the kernel of " +
                     text(layer.kernel));
        }
        slide();
    }
    void pool_adaptively() {
        needs_image();
        within(layer.kernel, 1, LARGEST_WINDOW, "size");
        in.height = int(layer.kernel[0]), in.width = int(layer.kernel[1]);
    }
    void needs_steps() const {
        rule(in.form == Shape::plane, std::string("needs sequences of features, but its input is ") +
                                          (in.form == Shape::flat ? "flat" : "an image"));
    }
    void connect() {
        rule(in.form != Shape::image, "needs flat samples or sequences, but its input was not flattened");
        const int64_t inputs = in.form == Shape::plane ? in.width : in.count();
        expects(inputs, "inputs");
        rule(layer.outputs > 0, "has no output");
        weight_and_bias(layer.outputs * inputs, layer.outputs);
        if (in.form == Shape::plane) in.width = layer.outputs;
        else in = {layer.outputs, 1, 1, Shape::flat};
    }
    void embed() {
        rule(in.form == Shape::flat && in.height * in.width == 1, "needs a row of tokens for each sample");
        rule(layer.inputs > 0 && layer.inputs <= LARGEST_TOKEN, "has " + text(layer.inputs) + " rows; it must be 1 to " +
                                                                    text(LARGEST_TOKEN));
        rule(layer.outputs > 0, "has no output");
        columns(layer.weight, int64_t(layer.inputs) * layer.outputs, trainable, "weight");
        in = {1, in.channels, layer.outputs, Shape::plane};
    }
    void recur(int64_t gates) {
        needs_steps();
        expects(in.width, "features");
        rule(layer.outputs > 0, "has no output");
        const int64_t rows = gates * layer.outputs;
        weight_and_bias(rows * in.width, rows);
        columns(layer.inner_weight, rows * layer.outputs, trainable, "inner weight");
        if (layer.inner_bias >= 0) columns(layer.inner_bias, rows, trainable, "inner bias");
        in.width = layer.outputs;
    }
    void attend() {
        needs_steps();
        rule(layer.groups >= 1 && in.width % (3 * layer.groups) == 0,
             "has " + text(layer.groups) + " heads, which must divide a third of its " + text(in.width) + " features");
        rule(in.height <= LONGEST_ATTENTION, "has sequences of " + text(in.height) + " steps; the native engine takes up to " +
                                                 text(LONGEST_ATTENTION));
        in.width /= 3;
    }
    void take_step() {
        needs_steps();
        rule(layer.number >= -in.height && layer.number < in.height,
             "takes step " + text(layer.number) + " of a sequence of " + text(in.height));
        in = {in.width, 1, 1, Shape::flat};
    }
};

}  // namespace

Shape Shape::of_samples(const std::vector<int>& sizes) {
    demand(!sizes.empty() && sizes.size() <= 3,
           "samples have " + std::to_string(sizes.size()) + " dimensions; the native engine takes 1 to 3");
    demand(std::all_of(sizes.begin(), sizes.end(), [](int size) { return size > 0; }),
           "samples must have at least one number along each dimension");
    int64_t count = 1;
    for (int size : sizes) demand((count *= size) <= std::numeric_limits<int>::max(), "samples are too large");
    if (sizes.size() == 1) return {sizes[0], 1, 1, flat};
    if (sizes.size() == 2) return {1, sizes[0], sizes[1], plane};
    return {sizes[0], sizes[1], sizes[2], image};
}

Shape shape_after(const Layer& layer, const std::string& place, const std::vector<Shape>& inputs,
                  int64_t trainable, int64_t width) {
    const std::string& kind = layer.kind;
    Rules r{layer, place, inputs.front(), trainable, width};
    r.rule(inputs.size() == 1 || kind == "add" || kind == "concat", "reads more than one input");
    if (kind == "conv") r.convolve();
    else if (kind == "norm") r.normalize_batch();
    else if (kind == "group_norm") r.normalize_groups();
    else if (kind == "layer_norm") r.normalize_layer();
    else if (kind == "max_pool" || kind == "avg_pool") r.pool();
    else if (kind == "adaptive_pool") r.pool_adaptively();
    else if (kind == "linear") r.connect();
    else if (kind == "embedding") r.embed();
    else if (kind == "gru" || kind == "lstm") r.recur(kind == "gru" ? 3 : 4);
    else if (kind == "attention") r.attend();
    else if (kind == "step") r.take_step();
    else if (kind == "time_mean") r.needs_steps(), r.in = {r.in.width, 1, 1, Shape::flat};
    else if (kind == "dropout") r.rule(layer.rate >= 0 && layer.rate < 1, "must drop a share of at least 0 and below 1");
    else if (kind == "flatten") r.in.form = Shape::flat;
    else if (kind == "add") {
        r.rule(inputs.size() == 2, "must add two inputs");
        r.rule(inputs[0] == inputs[1], "adds inputs of different shapes");
    } else if (kind == "concat") {
        const int dim = layer.number;
        const bool features = r.in.form == Shape::plane;
        r.rule((r.in.form == Shape::image && (dim == 1 || dim == -3)) || (features && (dim == 2 || dim == -1)) ||
                   (r.in.form == Shape::flat && r.in.height * r.in.width == 1 && (dim == 1 || dim == -1)),
               "concatenates neither channels nor features");
        int64_t channels = 0, width = 0;
        for (const Shape& in : inputs) {
            channels += in.channels, width += in.width;
            r.rule(in.form == r.in.form && in.height == r.in.height && (features || in.width == r.in.width),
                   "concatenates inputs of different sizes");
        }
        const int64_t size = features ? width * r.in.height : channels * r.in.height * r.in.width;
        r.rule(size <= std::numeric_limits<int>::max(), "makes too large a tensor");
        if (features) r.in.width = int(width);
        else r.in.channels = int(channels);
    } else {
        const char* others[] = {"relu", "leaky_relu", "elu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh"};
        r.rule(std::find(std::begin(others), std::end(others), kind) != std::end(others),
               "is of the unknown kind '" + kind + "'");
    }
    r.rule(r.in.count() <= std::numeric_limits<int>::max(), "makes too large a tensor");
    return r.in;
}

}  // namespace wecfl
