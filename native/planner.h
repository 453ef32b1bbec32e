// The rule book of layers: which ones the kernels run, what shape each makes of its input, and where the
// numbers of a network are kept.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan.h"

namespace wecfl {

// One layer as Python gives it. Columns of the row are -1 where the layer has no such parameter.
struct Layer {
    std::string kind;   // conv, norm, relu, max_pool, avg_pool, linear, dropout, or flatten
    std::string place;  // how errors name the layer, as in "the layer 'features.0' (Conv2d)"
    int64_t kernel = 0, stride = 1, pad = 0;
    int inputs = -1, outputs = 0;  // channels or features; inputs -1: as many as come
    int64_t weight = -1, bias = -1, mean = -1, variance = -1;
    float eps = 0, momentum = 0, rate = 0;
};

// Throws the sentence, which Python gets as a ValueError.
inline void demand(bool ok, const std::string& sentence) {
    if (!ok) throw std::invalid_argument(sentence);
}

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
    const Geometry& input_of(const Op& op) const { return tensors_[op.in].value; }

private:
    struct Shape;
    static Shape sample(const std::vector<int>& sizes);
    Shape after(const Layer& layer, const std::string& place, Shape in) const;
    size_t add(const std::vector<Layer>& layers, const std::vector<Shape>& shapes, size_t i);
    void skip_needless_gradients();
    void assign_memory();
    bool by_pairs(int kernel, int stride, const Geometry& in, const Geometry& out);

    std::vector<float> weights_;
    std::vector<Op> ops_;
    std::vector<Tensor> tensors_;
    Network net_{};
};

}  // namespace wecfl
