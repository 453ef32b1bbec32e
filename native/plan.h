// What is to be computed, in plain numbers: made once by the planner, read by every kernel.
//
// Activations are stored in blocks of LANES samples, as [channel][row][column][lane]: one vector
// register holds the same pixel of LANES samples, so every layer runs at full vector width whatever
// its channel count, and no layer needs shuffles. A batch is a few such blocks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace wecfl {

enum class Kind : int {
    conv,      // square kernels of 3, 5 and 7, stride 1: conv_loops.h
    any_conv,  // all others: any_conv.h
    norm,
    group_norm,
    layer_norm,
    relu,
    activation,
    max_pool,
    avg_pool,
    adaptive_pool,
    linear,
    embedding,
    gru,
    lstm,
    step,       // one step of a sequence
    time_mean,  // the mean of its steps
    attention,
    dropout,
    norm_relu_pool,
    relu_pool,
    add,
    place,  // a copy, to some of the channels of a larger tensor: a concatenation is several of them
    fork,   // a tensor that is read again: forwards the same numbers, backwards a sum of gradients
};

enum class Function : int { leaky_relu, elu, sigmoid, tanh, silu, gelu, gelu_tanh };

// Along rows (downwards) and along columns.
struct Sides {
    int y = 0, x = 0;
    int area() const { return y * x; }
    bool operator==(const Sides&) const = default;
};

// A tensor of one block: `border` rows and columns of zeros around it, as the convolutions that read it want.
struct Geometry {
    int channels = 0, height = 0, width = 0, border = 0;
    int rows() const { return height + 2 * border; }
    int columns() const { return width + 2 * border; }
    size_t plane() const { return size_t(rows()) * columns(); }
    size_t size() const { return plane() * channels; }  // in vectors
    size_t at(int c, int y, int x) const {
        return (size_t(c) * rows() + border + y) * columns() + border + x;
    }
    bool operator==(const Geometry&) const = default;
};

// Rows of a matrix that the recurrent products take at a time: 4 units with the 3 gates of a GRU, 3 units with
// the 4 gates of an LSTM (recurrent.h).
constexpr int ROWS_AT_A_TIME = 12;
constexpr int SAMPLES_AT_A_TIME = 128;  // of a gradient of weights that is summed over steps (sequence.h)
constexpr size_t rounded_up(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

// How many products stand for the 2K of a column of K taps and a pair of rows (winograd.h).
constexpr int products(int kernel) { return 3 * ((kernel - 1) / 2) + 1; }

// Squares of 2 × 2 pixels (squares.h): how many of them are multiplied at a time at most, and how many rows of them
// at once for the gradient of the weights.
constexpr int LEAST_FOR_SQUARES = 16;  // input and output channels
constexpr int MOST_SQUARES = 4;
constexpr int square_rows(int across, int down) { return 16 / across < 1 ? 1 : 16 / across < down ? 16 / across : down; }

// From the combined weights of a point to those of the next one, in floats. Powers of two would share places in a cache.
constexpr size_t square_point(int in_channels, int out_channels) { return size_t(in_channels) * out_channels + 16; }

struct Tensor {
    Geometry value, grad;
    size_t value_at = 0, grad_at = 0;  // in vectors, of block 0; block b is b * size further
};

// Where the products of one pixel of a general convolution read, in vectors from the place of its first one.
struct Taps {
    const int32_t* offsets;
    int count;
};

// Pixels of a convolution's input, `stride` apart, whose gradients are sums over the same taps.
struct Phase {
    Sides first, count;  // pixels: first + stride · (0 … count − 1)
    int32_t start;       // where the first of them reads the gradient, in vectors
    int32_t weights_at;  // its weights among the turned ones of a group
    Taps taps;
};

struct AnyConv {
    int groups, inputs, outputs;  // channels of each group
    Taps taps;
    const Phase* phases;
    int phase_count;
    const int32_t* order;  // turned weight n is weight order[n]
    size_t weights() const { return size_t(groups) * outputs * taps.count; }
};

struct Op {
    Kind kind;
    int in = 0, out = 0;  // tensors
    int other = -1;       // the second tensor of an addition, alone or behind a norm
    bool relu = false;    // ReLU behind a norm or an addition
    Sides kernel, stride{1, 1}, pad, dilation{1, 1};
    int groups = 1;                // of a group_norm; heads of an attention
    int channel = 0, column = 0;   // of a place: where it begins
    bool by_column = false;        // of a layer_norm or a linear layer: each row by itself, not the whole sample
    bool reverse = false;          // of a recurrent layer: from the last step to the first
    bool causal = false;           // of an attention: a step sees those up to itself
    int number = 0;                // of a step: which one; of an embedding: the row that is not learned, or -1
    int table_rows = 0;            // of an embedding
    bool count_padding = true;     // of an avg_pool
    Function function{};           // of an activation; `rate` is its slope or scale
    int64_t weight = -1, bias = -1;  // columns of the row
    int64_t inner_weight = -1, inner_bias = -1;  // of a recurrent layer: those of its own last output
    int64_t mean = -1, variance = -1;
    float eps = 0, momentum = 0, rate = 0;
    bool input_gradient = true;  // nothing before the first parameters needs one
    bool copy_in = false, copy_other = false;  // of an addition: inputs that don't share its gradient's memory
    int fused_pool = -1;         // of a convolution: the number of the relu_pool that it computes as well
    bool fused_in_conv = false;  // of that relu_pool: the convolution before it does its forward pass
    bool pairs = false, pairs_back = false;        // forward pass and input gradient by winograd.h
    bool squares = false;       // forward pass, input gradient and weights' gradient by squares.h
    size_t square_sums_at = 0;  // the sums for its weights' gradient, in floats
    size_t combined_at = 0, combined_back_at = 0;  // the combined weights of each, in floats
    size_t partial_at = 0;                         // its partial sums of weights, in vectors
    size_t partial_weights = 0, partial_biases = 0;  // how many
    size_t flipped_at = 0;     // its turned weights, in floats
    size_t codes_at = 0;       // its pooling codes or dropout mask, in vectors of bytes, of block 0
    size_t statistics_at = 0;  // its BatchNorm statistics, in floats
    size_t moments_at = 0;     // its means and deviations of single samples, in vectors, of block 0
    size_t kept_at = 0, kept_size = 0;  // what a recurrent layer or an attention keeps for its backward pass, in vectors, of block 0
    size_t ordered_at = 0, ordered_back_at = 0;  // its inner weights in the order of its loops, in floats
    const AnyConv* any = nullptr;
    int adds = -1;                // of a convolution: the tensor whose gradient it adds to that of its input, for a fork
    bool only_reached = false;    // it leaves out gradients of pixels that it doesn't read: who adds them knows that

    // Whether its backward pass writes ReLU's mask into the gradient of its own output.
    bool masks() const { return relu && other >= 0; }
};

enum class Loss : int { plain, weighted, squares };

struct LossOptions {
    Loss kind = Loss::plain;
    const float* weights = nullptr;  // (classes,) if weighted
    float smoothing = 0;             // of the weighted one
};

struct Network {
    const Op* ops;
    int op_count;
    const Tensor* tensors;
    int64_t trainable, width;
    int classes;  // outputs of the last layer
    int output;   // the tensor that holds them
    bool separable;        // no operation needs all samples of a batch at once
    size_t linear_weights;  // how many weights linear layers have
    LossOptions loss;
    // What a workspace holds: in vectors per block; vectors; vectors of bytes per block; floats.
    size_t tensors_size, partial_size, codes_size, statistics_size, turned_size, flipped_size, rows_size,
        combined_size, room_size, moments_size, kept_size, ordered_size, turned_steps_size, square_sums_size;
};

enum class Mode : int { train, running, batch };  // how BatchNorm and Dropout behave

// What is to be predicted for the samples of the pool.
struct Targets {
    const int64_t* labels = nullptr;  // (n,), for cross-entropy
    const float* numbers = nullptr;   // (n, classes), for squared errors
};

// One mini-batch: rows of the sample pool.
struct Batch {
    const float* samples;  // (n, sample_size)
    size_t sample_size;
    Targets targets;
    const int64_t* rows;
    int count;
    const float* weights = nullptr;  // (count,), factors of the samples' losses, or null: all 1
    const float* bias = nullptr;     // (count, classes), added to the outputs, or null: nothing
    int before = 0, after = 0;       // samples of the mini-batch before and behind these, if it is taken in parts
    int all() const { return before + count + after; }
};

enum class Descent : int { sgd, nesterov, adam, adamw };

// How a step follows from a gradient, with the formulas of torch.optim.
struct Rule {
    Descent descent;
    double momentum, weight_decay, beta2, eps;
    double max_gradient;  // 0: any
    bool adaptive() const { return descent == Descent::adam || descent == Descent::adamw; }
};

struct Update {
    float* buffer;        // what the rule keeps from step to step (LocalPlan.buffer), or null
    const float* anchor;  // (width,) or null: the row at the start of the round
    const float* offset;  // (width,) or null
    const float* mu;      // (trainable,) or null
    const bool* free;     // (trainable,) or null: all columns move
    float lr;
    Rule rule;
    const int64_t* stops;  // the column after the last one of each tensor
    int64_t tensors;
};

// Memory for the passes over batches, `capacity` blocks of LANES samples at a time. It starts as zeros, and
// the borders of tensors stay zero from pass to pass; so it is always used with the same capacity.
struct Workspace {
    void* memory;  // workspace_bytes(network, capacity), aligned to 64 bytes
    int capacity;
};

// The functions compiled once for each instruction set.
struct Backend {
    const char* name;
    int lanes;
    // How many blocks a workspace for batches of so many samples should have room for. If it has room for fewer than
    // a batch has, the passes take the batch in parts, with the same result to the last bit.
    int (*capacity)(const Network&, int samples);
    size_t (*workspace_bytes)(const Network&, int capacity);
    // Forward pass; writes the logits (count, classes).
    void (*forward)(const Network&, float* row, const Batch&, Mode, uint64_t key, const Workspace&,
                    float* logits);
    // Forward and backward pass: writes the gradient (trainable,) of the mean loss.
    void (*gradient)(const Network&, float* row, const Batch&, Mode, uint64_t key, const Workspace&,
                     float* gradient);
    void (*update)(const Network&, float* row, float* gradient, const Update&);
};

}  // namespace wecfl
