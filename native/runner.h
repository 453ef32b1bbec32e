// The class that Python sees: checks what comes, and runs clients on threads.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner.h"
#include "threads.h"

namespace wecfl_baseline {
extern const wecfl::Backend backend;
}
#ifdef WECFL_X86
namespace wecfl_avx2 {
extern const wecfl::Backend backend;
}
namespace wecfl_avx512 {
extern const wecfl::Backend backend;
}
#endif

namespace wecfl {

// The instruction sets of this machine, the best first.
inline std::vector<const Backend*> usable_backends() {
    std::vector<const Backend*> found;
#ifdef WECFL_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) found.push_back(&wecfl_avx512::backend);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found.push_back(&wecfl_avx2::backend);
#endif
    found.push_back(&wecfl_baseline::backend);
    return found;
}

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The rule of a plan by the name of its optimizer, and where each trainable tensor ends.
struct Optimizer {
    Optimizer(const std::string& name, std::vector<int64_t> stops, double momentum, double weight_decay,
              double beta2, double eps, double max_gradient)
        : rule{Descent::sgd, momentum, weight_decay, beta2, eps, max_gradient}, stops(std::move(stops)) {
        const char* names[] = {"sgd", "nesterov", "adam", "adamw"};
        const auto found = std::find(std::begin(names), std::end(names), name);
        demand(found != std::end(names), "there is no optimizer '" + name + "'");
        rule.descent = Descent(found - names);
    }
    // How many numbers it keeps; without momentum, SGD keeps none.
    int64_t buffer(int64_t trainable) const {
        return rule.adaptive() ? 2 * trainable + int64_t(stops.size()) : trainable;
    }
    Rule rule;
    std::vector<int64_t> stops;
};

class Runner {
public:
    Runner(const std::vector<Layer>& layers, const std::vector<int>& shape, int classes, int64_t trainable,
           int64_t width, const std::string& isa, const std::string& loss, const std::vector<float>& weights,
           float smoothing)
        : plan_(layers, shape, classes, trainable, width, loss, weights, smoothing) {
        for (const Backend* candidate : usable_backends())
            if (isa.empty() || isa == candidate->name) {
                backend_ = candidate;
                break;
            }
        demand(backend_ != nullptr, "this machine can't run the instruction set '" + isa + "'");
    }

    std::string isa() const { return backend_->name; }

    // Rows `clients` of `rows` and of everything else that has a row per client are trained in place.
    void train(Array<float, 2> rows, nb::object buffers, nb::object anchor, nb::object offset, nb::object mu,
               nb::object free, Array<float, 1> lr, const Optimizer& optimizer, Array<const float, 2> x,
               nb::object y, Array<const int64_t, 1> clients, Array<const int64_t, 1> index,
               Array<const int64_t, 2> offsets, Array<const uint64_t, 1> keys, int threads, nb::object weights,
               nb::object bias) {
        const int64_t m = int64_t(rows.shape(0)), n = int64_t(clients.shape(0)),
                      steps = int64_t(offsets.shape(1)) - 1;
        const Network& net = plan_.network();
        auto fits = [&](auto array, int64_t columns, const char* name) {
            demand(int64_t(array.shape(0)) == m && int64_t(array.shape(1)) == columns,
                   std::string(name) + " has the wrong shape");
            return array.data();
        };
        auto read_only = [&](nb::object array, const char* name) -> const float* {
            return array.is_none() ? nullptr
                                   : fits(nb::cast<Array<const float, 2>>(array, false), net.width, name);
        };
        demand(int64_t(rows.shape(1)) == net.width && steps >= 1,
               "rows have the wrong width, or there is no step");
        demand(int64_t(lr.shape(0)) == m && int64_t(offsets.shape(0)) == n && int64_t(keys.shape(0)) == n,
               "lr, offsets and keys need one entry per client");
        check_clients(clients, m);
        check_optimizer(optimizer, !buffers.is_none());
        const int64_t buffer_size = optimizer.buffer(net.trainable);
        float* all_buffers = nullptr;
        if (!buffers.is_none())
            all_buffers = fits(nb::cast<Array<float, 2>>(buffers, false), buffer_size, "buffers");
        const float *anchors = read_only(anchor, "anchor"), *offsets_of_rows = read_only(offset, "offset");
        const float* mu_of_columns = of_columns<float>(mu, "mu");
        const bool* free_columns = of_columns<bool>(free, "free");
        check_samples(x, index);
        const float *weight_of = weights_of(weights, index.shape(0)), *bias_of = bias_of_outputs(bias, index.shape(0));
        const Targets targets = targets_of(y, int64_t(x.shape(0)));
        const auto [smallest, largest] = check_offsets(offsets.data(), n, steps + 1, int64_t(index.shape(0)));
        check_norms(smallest);
        for_each_client(threads, [&](std::atomic<int64_t>& next, std::atomic<bool>& stop) {
            const int capacity = backend_->capacity(net, largest);
            const auto memory = workspace_memory(capacity),
                       gradient_memory = shelf_.take(net.trainable * sizeof(float)),
                       start_memory = shelf_.take(net.width * sizeof(float));
            const Workspace workspace{memory.get(), capacity};
            float *gradient = static_cast<float*>(gradient_memory.get()),
                  *start = static_cast<float*>(start_memory.get());
            for (int64_t j; !stop && (j = next++) < n;) {
                const int64_t i = clients.data()[j];
                float* row = rows.data() + i * net.width;
                std::memcpy(start, row, net.width * sizeof(float));
                const Update update{all_buffers ? all_buffers + i * buffer_size : nullptr,
                                    anchors ? anchors + i * net.width : start,
                                    offsets_of_rows ? offsets_of_rows + i * net.width : nullptr,
                                    mu_of_columns,
                                    free_columns,
                                    lr.data()[i],
                                    optimizer.rule,
                                    optimizer.stops.data(),
                                    int64_t(optimizer.stops.size())};
                for (int64_t q = 0; q < steps && !stop; q++) {
                    const int64_t *at = offsets.data() + j * (steps + 1) + q, count = at[1] - at[0];
                    if (count == 0) break;  // a client that takes fewer steps
                    const Batch batch{x.data(), x.shape(1), targets, index.data() + at[0], int(count),
                                      weight_of ? weight_of + at[0] : nullptr,
                                      bias_of ? bias_of + at[0] * net.classes : nullptr};
                    backend_->gradient(net, row, batch, Mode::train,
                                       keys.data()[j] + uint64_t(q) * 0xD1B54A32D192ED03ull, workspace, gradient);
                    backend_->update(net, row, gradient, update);
                }
            }
        });
    }

    // The samples of client i are index[offsets[i] … offsets[i + 1]), its model is row which[i].
    void logits(Array<const float, 2> rows, Array<const int64_t, 1> which, Array<const float, 2> x,
                Array<const int64_t, 1> index, Array<const int64_t, 1> offsets, Array<float, 2> out,
                const std::string& mode, int batch, int threads) {
        const Network& net = plan_.network();
        demand(out.shape(0) == index.shape(0) && int64_t(out.shape(1)) == net.classes,
               "out has the wrong shape");
        check_samples(x, index);
        evaluate(rows, which, x, Targets{}, index, offsets, mode, batch, threads, [&](const Workspace& workspace) {
            return [&](int64_t, float* row, const Batch& part, Mode how) {
                float* to = out.data() + (part.rows - index.data()) * net.classes;
                backend_->forward(net, row, part, how, 0, workspace, to);
            };
        });
    }

    // out[i] = the gradient of client i's mean loss over its samples.
    void gradients(Array<const float, 2> rows, Array<const int64_t, 1> which, Array<const float, 2> x,
                   nb::object y, Array<const int64_t, 1> index, Array<const int64_t, 1> offsets,
                   Array<float, 2> out, const std::string& mode, int batch, int threads) {
        const Network& net = plan_.network();
        demand(out.shape(0) == which.shape(0) && int64_t(out.shape(1)) == net.trainable,
               "out has the wrong shape");
        check_samples(x, index);
        const Targets targets = targets_of(y, int64_t(x.shape(0)));
        std::fill(out.data(), out.data() + out.size(), 0.f);
        evaluate(rows, which, x, targets, index, offsets, mode, batch, threads, [&](const Workspace& workspace) {
            return [&, gradient = std::vector<float>(net.trainable)](int64_t i, float* row, const Batch& part,
                                                                     Mode how) mutable {
                backend_->gradient(net, row, part, how, 0, workspace, gradient.data());
                const float share = float(part.count) / float(offsets.data()[i + 1] - offsets.data()[i]);
                float* to = out.data() + i * net.trainable;
                for (int64_t k = 0; k < net.trainable; k++) to[k] += share * gradient[k];
            };
        });
    }

private:
    // Every client's samples in batches, without changing its row: `make(workspace)` gives each thread
    // its function of (client, row, batch, mode).
    template <class Make>
    void evaluate(const Array<const float, 2>& rows, const Array<const int64_t, 1>& which,
                  const Array<const float, 2>& x, const Targets& targets, const Array<const int64_t, 1>& index,
                  const Array<const int64_t, 1>& offsets, const std::string& mode, int batch, int threads,
                  Make make) {
        const Network& net = plan_.network();
        const int64_t m = int64_t(which.shape(0)), n = int64_t(index.shape(0));
        demand(int64_t(rows.shape(1)) == net.width, "rows have the wrong width");
        demand(int64_t(offsets.shape(0)) == m + 1 && batch >= 1 && batch <= 1 << 20,
               "offsets need one entry more than clients, batches a sample");
        demand(mode == "running" || mode == "batch", "mode must be 'running' or 'batch'");
        for (int64_t i = 0; i < m; i++) {
            demand(which.data()[i] >= 0 && which.data()[i] < int64_t(rows.shape(0)),
                   "which names a row that is not there");
            demand(offsets.data()[i] <= offsets.data()[i + 1], "offsets must not fall");
        }
        demand(offsets.data()[0] >= 0 && offsets.data()[m] <= n, "offsets reach beyond the index");
        const Mode how = mode == "running" ? Mode::running : Mode::batch;
        for_each_client(threads, [&](std::atomic<int64_t>& next, std::atomic<bool>& stop) {
            const int capacity = backend_->capacity(net, batch);
            const auto memory = workspace_memory(capacity);
            const Workspace workspace{memory.get(), capacity};
            auto run = make(workspace);
            for (int64_t i; !stop && (i = next++) < m;) {
                // Only training writes to a row.
                float* row = const_cast<float*>(rows.data()) + which.data()[i] * net.width;
                for (int64_t from = offsets.data()[i]; from < offsets.data()[i + 1] && !stop; from += batch) {
                    const int count = int(std::min<int64_t>(batch, offsets.data()[i + 1] - from));
                    run(i, row, Batch{x.data(), x.shape(1), targets, index.data() + from, count}, how);
                }
            }
        });
    }

    // A larger capacity takes more bytes, so a piece from the shelf was laid out for the same one.
    std::shared_ptr<void> workspace_memory(int capacity) {
        return shelf_.take(backend_->workspace_bytes(plan_.network(), capacity));
    }

    // An entry for each trainable column, or null.
    template <class T>
    const T* of_columns(const nb::object& array, const char* name) const {
        if (array.is_none()) return nullptr;
        const auto given = nb::cast<Array<const T, 1>>(array, false);
        demand(int64_t(given.shape(0)) == plan_.network().trainable,
               std::string(name) + " needs one entry per trainable column");
        return given.data();
    }

    // A factor for each sample of the batches, or null.
    static const float* weights_of(const nb::object& weights, size_t samples) {
        if (weights.is_none()) return nullptr;
        const auto given = nb::cast<Array<const float, 1>>(weights, false);
        demand(given.shape(0) == samples, "weights need one entry per sample of a batch");
        return given.data();
    }

    // What is added to the outputs for each sample of the batches, or null.
    const float* bias_of_outputs(const nb::object& bias, size_t samples) const {
        if (bias.is_none()) return nullptr;
        const auto given = nb::cast<Array<const float, 2>>(bias, false);
        demand(given.shape(0) == samples && int64_t(given.shape(1)) == plan_.network().classes,
               "bias needs one row per sample of a batch");
        return given.data();
    }

    // Each client at most once: threads must not share a row.
    static void check_clients(const Array<const int64_t, 1>& clients, int64_t rows) {
        for (size_t i = 0; i < clients.shape(0); i++)
            demand(clients.data()[i] > (i ? clients.data()[i - 1] : -1) && clients.data()[i] < rows,
                   "clients must be rows in rising order");
    }

    void check_optimizer(const Optimizer& optimizer, bool has_buffers) const {
        demand(has_buffers || optimizer.rule.descent == Descent::sgd, "the optimizer needs buffers");
        int64_t column = 0;
        for (const int64_t stop : optimizer.stops) {
            demand(stop >= column, "stops must rise");
            column = stop;
        }
        demand(column == plan_.network().trainable, "stops must end with the last trainable column");
    }

    void check_norms(int smallest_batch) const {
        for (const Op& op : plan_.ops()) {
            const Geometry& in = plan_.input_of(op);
            demand(op.mean < 0 || smallest_batch * in.height * in.width > 1,
                   "BatchNorm needs more than one value per channel; a batch has one sample");
        }
    }

    // Labels (n,) or, for squared errors, numbers (n, classes); `y` keeps them alive.
    Targets targets_of(const nb::object& y, int64_t n) const {
        const Network& net = plan_.network();
        try {
            if (net.loss.kind == Loss::squares) {
                const auto numbers = nb::cast<Array<const float, 2>>(y, false);
                demand(int64_t(numbers.shape(0)) == n && int64_t(numbers.shape(1)) == net.classes,
                       "there must be one number per sample and output");
                return {nullptr, numbers.data()};
            }
            const auto labels = nb::cast<Array<const int64_t, 1>>(y, false);
            demand(int64_t(labels.shape(0)) == n, "there must be one label per sample");
            for (int64_t i = 0; i < n; i++)
                demand(labels.data()[i] >= 0 && labels.data()[i] < net.classes, "a label is out of range");
            return {labels.data(), nullptr};
        } catch (const std::bad_cast&) {
            throw nb::type_error("y must be int64 labels (n,) or, for squares, float32 numbers (n, outputs)");
        }
    }

    void check_samples(const Array<const float, 2>& x, const Array<const int64_t, 1>& index) const {
        const Geometry& in = plan_.input();
        demand(x.shape(1) == size_t(in.channels) * in.height * in.width, "samples have the wrong size");
        const int64_t n = int64_t(x.shape(0));
        for (size_t i = 0; i < index.shape(0); i++)
            demand(index.data()[i] >= 0 && index.data()[i] < n, "index names a sample that is not there");
        if (const int tokens = plan_.tokens())
            for (size_t i = 0; i < index.shape(0); i++)
                for (size_t k = 0; k < x.shape(1); k++) {
                    const float token = x.data()[index.data()[i] * x.shape(1) + k];
                    if (token >= 0 && token < float(tokens) && token == float(int(token))) continue;
                    char number[32];
                    std::snprintf(number, sizeof number, "%g", token);
                    throw std::invalid_argument(std::string("a token is ") + number + ", but the embedding has rows 0 to " +
                                                std::to_string(tokens - 1));
                }
    }

    // The sizes of the smallest and the largest batch, but for those left out at the end.
    static std::pair<int, int> check_offsets(const int64_t* offsets, int64_t rows, int64_t columns,
                                             int64_t limit) {
        int64_t smallest = limit, largest = 1;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t* at = offsets + i * columns;
            demand(at[0] >= 0 && at[columns - 1] <= limit, "offsets reach beyond the index");
            for (int64_t q = 0; q + 1 < columns; q++) {
                demand(at[q] < at[q + 1] || (q > 0 && at[q] == at[columns - 1]),
                       "every batch and client needs a sample");
                if (at[q] == at[q + 1]) break;
                smallest = std::min(smallest, at[q + 1] - at[q]);
                largest = std::max(largest, at[q + 1] - at[q]);
            }
        }
        demand(largest <= 1 << 20, "a batch of more than a million samples");
        return {int(smallest), int(largest)};
    }

    Plan plan_;
    const Backend* backend_ = nullptr;
    Shelf shelf_;
};

}  // namespace wecfl
