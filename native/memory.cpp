// Which memory the tensors and operations of a plan use.
#include <algorithm>

#include "planner.h"

namespace wecfl {

// The gradient of a sum is that of its inputs, in the same memory if nobody changes it later: neither a fork
// adds to it, nor does the operation that made the input write ReLU's mask into it.
void Plan::share_gradients() {
    gradient_of_.resize(tensors_.size());
    for (size_t t = 0; t < tensors_.size(); t++) gradient_of_[t] = int(t);
    for (Op& op : ops_) {
        if (op.other < 0) continue;
        const auto shares = [&](int tensor) {
            if (value_of_[tensor] != tensor) return true;
            if (tensors_[tensor].grad.border) return false;
            for (const Op& o : ops_) {
                if (o.kind == Kind::fork && o.in == tensor) return false;
                if (o.kind != Kind::fork && o.out == tensor && o.masks()) return false;
            }
            return true;
        };
        const auto give = [&](int tensor, bool& copy) {
            if (!needs_gradient_[tensor]) return;
            if (shares(tensor)) gradient_of_[tensor] = op.out;
            else copy = true;
        };
        if (op.kind == Kind::add) give(op.in, op.copy_in);
        give(op.other, op.copy_other);
    }
}

// Whether winograd.h is worth it: few channels leave too much beside the products. Makes room for it.
bool Plan::by_pairs(int kernel, const Geometry& in, const Geometry& out) {
    if (in.channels < 6 || out.channels < 4) return false;
    const size_t columns = out.width + kernel - 1, count = products(kernel);
    net_.combined_size += count * kernel * in.channels * out.channels;
    net_.room_size =
        std::max(net_.room_size, count * in.channels * columns + 2 * size_t(out.channels) * out.width);
    return true;
}

// Whether squares.h is worth it. Makes room for it.
bool Plan::by_squares(Op& op, const Geometry& in, const Geometry& out) {
    if (op.kernel.y != 3 || std::min(in.channels, out.channels) < LEAST_FOR_SQUARES) return false;
    const size_t weights = 16 * square_point(in.channels, out.channels);
    op.combined_at = net_.combined_size;
    op.combined_back_at = op.combined_at + weights;
    net_.combined_size += weights * (op.input_gradient ? 2 : 1);
    const size_t ins = rounded_up(in.channels, 4), outs = rounded_up(out.channels, 4);
    net_.room_size = std::max(net_.room_size, 4 * MOST_SQUARES * (ins + outs) + 4);
    const int across = (out.width + 1) / 2, down = (out.height + 1) / 2;
    op.square_sums_at = net_.square_sums_size;
    net_.square_sums_size += 16 * ins * outs;
    net_.room_size = std::max(net_.room_size, 4 * (ins + outs) * (across * square_rows(across, down) + 1));
    return true;
}

// What layers of sequences need beside their tensors (sequence.h, recurrent.h).
void Plan::remember_steps(Op& op) {
    const Geometry &in = tensors_[op.in].value, &out = tensors_[op.out].value;
    const size_t units = out.width, steps = out.height, gates = op.kind == Kind::gru ? 3 : 4;
    const size_t widest = op.kind == Kind::linear ? in.width : std::max(in.width, out.width);
    if (op.kind != Kind::layer_norm)
        net_.turned_steps_size = std::max(net_.turned_steps_size, SAMPLES_AT_A_TIME * rounded_up(widest, 16));
    if (op.kind != Kind::gru && op.kind != Kind::lstm) return;
    // The gates; for a GRU what its own output gives to them, for an LSTM its cells and their tanh; the
    // gradients of output and cells that a step gives to the one before it.
    op.kept_at = net_.kept_size;
    op.kept_size = steps * units * (gates + (op.kind == Kind::gru ? 3 : 2)) + 2 * units;
    net_.kept_size += op.kept_size;
    op.ordered_at = net_.ordered_size;
    net_.ordered_size += rounded_up(units, ROWS_AT_A_TIME / gates) * gates * units;
    op.ordered_back_at = net_.ordered_size;
    net_.ordered_size += rounded_up(units, ROWS_AT_A_TIME) * gates * units;
}

// Gives every gradient a place in the workspace. Those that no operation needs at the same time use the same one, so that
// more of them stay in a cache. Their geometry is the same too: nobody but the workspace's maker writes borders. The
// gradient of a tensor that nobody reads is 0, and nobody writes it either: it stays as the workspace's maker left it.
template <class Take>
void Plan::place_gradients(Take take) {
    const auto owner = [&](int t) {
        while (gradient_of_[t] != t) t = gradient_of_[t];
        return t;
    };
    // The backward pass goes from the last operation, `from`, to the first one that reads or writes a gradient.
    struct Life {
        int from = -1, to = 0;
    };
    std::vector<Life> lives(tensors_.size());
    const int end = int(ops_.size());
    const auto uses = [&](int tensor, int at) {
        Life& life = lives[owner(tensor)];
        if (life.from < 0) life.from = at;
        life.to = at;
    };
    std::vector<bool> read(tensors_.size());
    uses(net_.output, end), read[net_.output] = true;  // by the loss
    for (int i = end - 1; i >= 0; i--) {
        uses(ops_[i].out, i), uses(ops_[i].in, i), read[ops_[i].in] = true;
        if (ops_[i].other >= 0) uses(ops_[i].other, i), read[ops_[i].other] = true;
    }
    struct Place {
        int tensor, free_below;  // the last that had it, and the operation that used that one last
    };
    std::vector<Place> places;
    for (int at = end; at >= 0; at--)
        for (size_t t = 0; t < tensors_.size(); t++) {
            if (gradient_of_[t] != int(t) || lives[t].from != at) continue;
            if (!read[t]) {
                tensors_[t].grad_at = take(tensors_[t].grad);
                continue;
            }
            const auto found = std::find_if(places.begin(), places.end(), [&](const Place& place) {
                return place.free_below > at && tensors_[place.tensor].grad == tensors_[t].grad;
            });
            tensors_[t].grad_at = found == places.end() ? take(tensors_[t].grad) : tensors_[found->tensor].grad_at;
            if (found == places.end()) places.push_back({int(t), lives[t].to});
            else *found = {int(t), lives[t].to};
        }
    for (size_t t = 0; t < tensors_.size(); t++) tensors_[t].grad_at = tensors_[owner(int(t))].grad_at;
}

// A general convolution that writes the gradient of a forked tensor adds that of a further reader in the same pass, if
// that one is there by then.
void Plan::add_in_convolutions() {
    const auto reader = [&](int tensor) {
        return std::find_if(ops_.begin(), ops_.end(), [&](const Op& op) {
            return op.kind != Kind::fork && (op.in == tensor || op.other == tensor);
        });
    };
    for (auto fork = ops_.rbegin(); fork != ops_.rend(); fork++) {  // as the backward pass comes to them
        if (fork->kind != Kind::fork) continue;
        const auto first = reader(fork->in), further = reader(fork->out);
        if (first == ops_.end() || !first->any || first->adds >= 0 || first > further ||
            !(tensors_[fork->in].grad == tensors_[fork->out].grad))
            continue;
        first->adds = fork->out;
        fork->input_gradient = false;
        further->only_reached = further->any && first->stride == further->stride;
    }
}

// Gives every tensor and operation its place in the workspace.
void Plan::assign_memory() {
    const auto take = [&](const Geometry& g) {
        const size_t at = net_.tensors_size;
        net_.tensors_size += g.size();
        return at;
    };
    for (size_t t = 0; t < tensors_.size(); t++)
        if (value_of_[t] == int(t)) tensors_[t].value_at = take(tensors_[t].value);
    for (size_t t = 0; t < tensors_.size(); t++) tensors_[t].value_at = tensors_[value_of_[t]].value_at;
    place_gradients(take);
    net_.separable = true;
    for (size_t i = 0; i < ops_.size(); i++) {
        Op& op = ops_[i];
        const Geometry &in = tensors_[op.in].value, &out = tensors_[op.out].value;
        if (op.kind == Kind::conv || op.kind == Kind::any_conv) {
            const size_t weights = size_t(out.channels) * (in.channels / op.groups) * op.kernel.area();
            op.partial_biases = op.bias < 0 ? 0 : out.channels;
            op.squares = op.kind == Kind::conv && by_squares(op, in, out);
            if (op.kind == Kind::conv && !op.squares) op.partial_weights = weights;  // others add up lanes at once
            op.flipped_at = net_.flipped_size;
            if (op.input_gradient && !op.squares) net_.flipped_size += weights;
        } else if (op.kind == Kind::group_norm || op.kind == Kind::layer_norm) {
            const size_t count = op.kind == Kind::group_norm ? in.channels
                                                             : size_t(in.channels) * in.height * in.width / op.groups;
            op.partial_weights = op.weight < 0 ? 0 : count;
            op.partial_biases = op.bias < 0 ? 0 : count;
            op.moments_at = net_.moments_size;
            net_.moments_size += 4 * size_t(op.groups);
        }
        if (op.kind == Kind::linear && !op.by_column) {
            op.partial_biases = op.bias < 0 ? 0 : out.channels;
            net_.linear_weights += in.size() * out.channels;
        }
        net_.separable &= op.kind != Kind::norm && op.kind != Kind::norm_relu_pool && op.kind != Kind::embedding &&
                          op.kind != Kind::gru && op.kind != Kind::lstm && !(op.kind == Kind::linear && op.by_column);
        op.partial_at = net_.partial_size;
        net_.partial_size += op.partial_weights + op.partial_biases;
        if (op.kind == Kind::conv) {
            net_.rows_size = std::max(net_.rows_size, size_t(2) * out.channels * out.width);
            if (!op.squares) {
                op.combined_at = net_.combined_size;
                op.pairs = by_pairs(op.kernel.y, in, out);
                op.combined_back_at = net_.combined_size;
                op.pairs_back = op.input_gradient && by_pairs(op.kernel.y, out, in);
            }
            if (i + 1 < ops_.size() && ops_[i + 1].kind == Kind::relu_pool && ops_[i + 1].in == op.out)
                op.fused_pool = int(i) + 1, ops_[i + 1].fused_in_conv = true;
        }
        if (op.kind == Kind::any_conv) {
            tables_.push_back(std::make_unique<AnyConvTables>(op, op.groups, in, tensors_[op.out].grad));
            op.any = &tables_.back()->conv;
        }
        op.codes_at = net_.codes_size;
        net_.codes_size += size_t(out.channels) * out.height * out.width;
        op.statistics_at = net_.statistics_size;
        if (op.kind == Kind::norm || op.kind == Kind::norm_relu_pool)
            net_.statistics_size += 4 * size_t(in.channels);
        if (op.kind == Kind::linear && !op.by_column) net_.turned_size = std::max(net_.turned_size, in.size());
        if (op.kind == Kind::gru || op.kind == Kind::lstm || op.by_column) remember_steps(op);
        if (op.kind == Kind::attention) {
            const size_t shares = size_t(out.height) * out.height;
            op.kept_at = net_.kept_size, op.kept_size = shares * op.groups;
            net_.kept_size += op.kept_size;
            net_.room_size = std::max(net_.room_size, shares);
        }
    }
    add_in_convolutions();
    net_.ops = ops_.data(), net_.op_count = int(ops_.size());
    net_.tensors = tensors_.data();
}

}  // namespace wecfl
