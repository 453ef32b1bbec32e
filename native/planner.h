// The rule book of layers: which ones the kernels run, what shape each makes of its input, and where the
// numbers of a network are kept.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan.h"

namespace wecfl {

using Pair = std::array<int64_t, 2>;  // along rows (downwards) and along columns

// One layer as Python gives it. Columns of the row are -1 where the layer has no such parameter.
struct Layer {
    std::string kind;    // the names are in `Plan::after`
    std::string place;   // how errors name the layer, as in "the layer 'features.0' (Conv2d)"
    std::vector<int> reads;  // whose output it reads: 0 are the samples, i + 1 is layer i; none: the one before
    Pair kernel{0, 0}, stride{1, 1}, pad{0, 0}, dilation{1, 1};
    int64_t groups = 1;
    int inputs = -1, outputs = 0;  // channels or features; inputs -1: as many as come
    int64_t weight = -1, bias = -1, inner_weight = -1, inner_bias = -1, mean = -1, variance = -1;
    float eps = 0, momentum = 0, rate = 0;
    bool ceil = false, count_padding = true, reverse = false, causal = false;
    int number = -1;  // of a step: which one; of a concatenation: along which dimension; of an embedding: the row that is not learned
};

// The shape of a sample on its way through the layers. Flattening changes the form alone: numbers stay
// where they are, and a linear layer reads all of them. A sequence is a plane: a row for each step, a column for
// each feature.
struct Shape {
    enum Form { flat, plane, image };  // features; height and width; channels, height and width
    int channels, height, width;
    Form form;

    int64_t count() const { return int64_t(channels) * height * width; }
    std::string sides() const { return std::to_string(height) + " × " + std::to_string(width); }
    bool can_be_halved() const { return height >= 2 && width >= 2; }
    bool operator==(const Shape&) const = default;

    static Shape of_samples(const std::vector<int>& sizes);
};

// Throws the sentence, which Python gets as a ValueError.
inline void demand(bool ok, const std::string& sentence) {
    if (!ok) throw std::invalid_argument(sentence);
}

// The shape that a layer makes of its inputs, in a network of which a row has `width` columns and the first
// `trainable` get gradients. Throws a sentence that begins with `place` if the layer breaks a rule.
Shape shape_after(const Layer& layer, const std::string& place, const std::vector<Shape>& inputs,
                  int64_t trainable, int64_t width);

// The lists of a general convolution; they follow from the geometry of what it reads and of its gradient.
struct AnyConvTables {
    AnyConvTables(const Op& op, int groups, const Geometry& in, const Geometry& out_grad);
    AnyConvTables(const AnyConvTables&) = delete;  // `conv` points into the vectors
    AnyConvTables& operator=(const AnyConvTables&) = delete;
    // How wide a border of zeros its output's gradient needs.
    static int border(const Op& op, const Geometry& in, const Geometry& out);

    AnyConv conv;

private:
    std::vector<int32_t> offsets_, order_;
    std::vector<std::vector<int32_t>> phase_offsets_;
    std::vector<Phase> phases_;
};

// A network, ready to run. Its constructor throws where the layers break a rule; the sentence names the
// layer and the reason.
class Plan {
public:
    // A row has `width` columns, of which the first `trainable` get gradients. `sample_shape` has one to
    // three sizes: features; height and width; or channels, height and width.
    // `weights`, one for each class, and `smoothing` are those of the loss "weighted cross-entropy".
    Plan(const std::vector<Layer>& layers, const std::vector<int>& sample_shape, int classes,
         int64_t trainable, int64_t width, const std::string& loss, std::vector<float> weights,
         float smoothing);
    Plan(const Plan&) = delete;  // the network points into the vectors
    Plan& operator=(const Plan&) = delete;

    const Network& network() const { return net_; }
    const std::vector<Op>& ops() const { return ops_; }
    const Geometry& input() const { return tensors_[0].value; }
    const Geometry& input_of(const Op& op) const { return tensors_[op.in].value; }
    // Samples are whole numbers from 0 to below this one; 0: any numbers.
    int tokens() const { return tokens_; }

private:
    struct Values;
    size_t add(const std::vector<Layer>& layers, Values& values, size_t i);
    void add_concatenation(Values& values, size_t i);
    void remember_steps(Op& op);
    int new_tensor(const Shape& shape);
    void set_borders();
    void find_needed_gradients();
    void fork_tensors();
    void share_gradients();
    void assign_memory();
    template <class Take>
    void place_gradients(Take take);
    void add_in_convolutions();
    bool by_pairs(int kernel, const Geometry& in, const Geometry& out);
    bool by_squares(Op& op, const Geometry& in, const Geometry& out);

    int tokens_ = 0;
    std::vector<float> weights_;
    std::vector<Op> ops_;
    std::vector<Tensor> tensors_;
    std::vector<bool> needs_gradient_;  // of tensors
    std::vector<int> value_of_, gradient_of_;  // tensors whose memory a tensor uses: its own, or another's
    std::vector<std::unique_ptr<AnyConvTables>> tables_;
    Network net_{};
};

}  // namespace wecfl
