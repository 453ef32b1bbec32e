// The Python module: plans a network from its layers, runs clients on threads without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "plan.h"

namespace nb = nanobind;
using namespace wecfl;

namespace wecfl_baseline {
extern const Backend backend;
}
#ifdef WECFL_X86
namespace wecfl_avx2 {
extern const Backend backend;
}
namespace wecfl_avx512 {
extern const Backend backend;
}
#endif

namespace {

std::vector<const Backend*> usable_backends() {
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

// ---- planning ---------------------------------------------------------------------------------

struct Layer {
    std::string kind;
    int kernel = 0, stride = 1, pad = 0, outputs = 0;
    int64_t weight = -1, bias = -1, mean = -1, variance = -1;
    float eps = 0, momentum = 0, rate = 0;
};

int out_size(int in, int kernel, int stride, int pad) { return (in + 2 * pad - kernel) / stride + 1; }

void demand(bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument(what);
}

struct Plan {
    std::vector<Op> ops;
    std::vector<Tensor> tensors;
    Network net{};

    Plan(const std::vector<Layer>& layers, std::vector<int> shape, int classes, int64_t trainable,
         int64_t width) {
        demand(shape.size() == 3 && shape[0] > 0 && shape[1] > 0 && shape[2] > 0,
               "a sample has shape (channels, height, width)");
        tensors.push_back({{shape[0], shape[1], shape[2]}, {shape[0], shape[1], shape[2]}});
        for (size_t i = 0; i < layers.size();) i += add(layers, i, trainable, width);
        demand(!ops.empty(), "a network needs at least one layer");
        demand(ops.back().kind == Kind::linear && tensors.back().value.channels == classes,
               "the last layer must give one logit per class");
        ops.front().input_gradient = false;
        for (size_t i = 1; i < ops.size(); i++)  // nothing before the first parameters needs a gradient
            if (!ops[i - 1].input_gradient && ops[i - 1].weight < 0) ops[i].input_gradient = false;
        place(classes, trainable, width);
    }

    static bool pools_by_two(const Layer& layer) {
        return layer.kind == "max_pool" && layer.kernel == 2 && layer.stride == 2 && layer.pad == 0;
    }

    size_t add(const std::vector<Layer>& layers, size_t i, int64_t trainable, int64_t width) {
        const Layer& l = layers[i];
        const Geometry& in = tensors.back().value;
        Op op{};
        op.in = int(tensors.size()) - 1;
        op.out = op.in + 1;
        op.kernel = l.kernel, op.stride = l.stride, op.pad = l.pad;
        op.weight = l.weight, op.bias = l.bias, op.mean = l.mean, op.variance = l.variance;
        op.eps = l.eps, op.momentum = l.momentum, op.rate = l.rate;
        int c = in.channels, h = in.height, w = in.width;
        auto columns = [&](int64_t at, int64_t count, int64_t limit, const char* name) {
            demand(at >= 0 && at + count <= limit, l.kind + ": its " + name + " lies outside the row");
        };
        auto window = [&] {
            demand(l.kernel >= 1 && l.stride >= 1 && l.pad >= 0,
                   l.kind + ": kernel, stride and padding must be positive");
            demand(h + 2 * l.pad >= l.kernel && w + 2 * l.pad >= l.kernel,
                   l.kind + ": the kernel is larger than its input");
            h = out_size(h, l.kernel, l.stride, l.pad), w = out_size(w, l.kernel, l.stride, l.pad);
        };
        const bool pool_next = i + 1 < layers.size() && pools_by_two(layers[i + 1]);
        const bool relu_pool_next =
            i + 2 < layers.size() && layers[i + 1].kind == "relu" && pools_by_two(layers[i + 2]);
        size_t used = 1;
        if (l.kind == "conv") {
            demand(l.outputs > 0, "conv: at least one output channel");
            demand(l.kernel == 1 || l.kernel == 3 || l.kernel == 5 || l.kernel == 7,
                   "conv: kernel 1, 3, 5 or 7");
            demand(l.stride == 1 || l.stride == 2, "conv: stride 1 or 2");
            demand(l.pad < l.kernel, "conv: padding must be smaller than the kernel");
            columns(l.weight, int64_t(l.outputs) * c * l.kernel * l.kernel, trainable, "weight");
            if (l.bias >= 0) columns(l.bias, l.outputs, trainable, "bias");
            op.kind = Kind::conv;
            tensors.back().value.border = l.pad;
            const int slack = h + 2 * l.pad - l.kernel, wide = w + 2 * l.pad - l.kernel;
            window();
            demand(slack - (h - 1) * l.stride == wide - (w - 1) * l.stride || l.stride == 1,
                   "conv: a stride of 2 needs height and width of the same parity");
            c = l.outputs;
            Tensor out{{c, h, w}, {c, h, w, l.kernel - 1 - l.pad, l.stride, slack - (h - 1) * l.stride}};
            tensors.push_back(out);
            op.pools_rows = relu_pool_next && h >= 2 && w >= 2;
            ops.push_back(op);
            return used;
        }
        if (l.kind == "norm") {
            columns(l.mean, c, width, "running mean"), columns(l.variance, c, width, "running variance");
            if (l.weight >= 0) columns(l.weight, c, trainable, "weight");
            if (l.bias >= 0) columns(l.bias, c, trainable, "bias");
            op.kind = Kind::norm;
            if (relu_pool_next && h >= 2 && w >= 2) op.kind = Kind::norm_relu_pool, h /= 2, w /= 2, used = 3;
        } else if (l.kind == "relu") {
            op.kind = Kind::relu;
            if (pool_next && h >= 2 && w >= 2)
                op.kind = Kind::relu_pool, op.pooled = !ops.empty() && ops.back().pools_rows, h /= 2, w /= 2,
                used = 2;
        } else if (l.kind == "max_pool" || l.kind == "avg_pool") {
            op.kind = l.kind == "max_pool" ? Kind::max_pool : Kind::avg_pool;
            demand(l.kernel <= 15 && 2 * l.pad <= l.kernel,
                   l.kind + ": kernel up to 15, padding up to half of it");
            window();
        } else if (l.kind == "linear") {
            op.kind = Kind::linear;
            demand(l.outputs > 0, "linear: at least one output");
            columns(l.weight, int64_t(l.outputs) * c * h * w, trainable, "weight");
            if (l.bias >= 0) columns(l.bias, l.outputs, trainable, "bias");
            c = l.outputs, h = w = 1;
        } else if (l.kind == "dropout") {
            demand(l.rate >= 0 && l.rate < 1, "dropout: a rate in [0, 1)");
            op.kind = Kind::dropout;
        } else {
            throw std::invalid_argument("unknown layer '" + l.kind + "'");
        }
        tensors.push_back({{c, h, w}, {c, h, w}});
        ops.push_back(op);
        return used;
    }

    // Whether winograd.h is worth it: few channels leave too much beside the products. Makes room for it.
    bool by_pairs(int kernel, int stride, const Geometry& in, const Geometry& out) {
        if (kernel == 1 || stride != 1 || in.channels < 6 || out.channels < 4) return false;
        const size_t columns = out.width + kernel - 1, count = products(kernel);
        net.combined_size += count * kernel * in.channels * out.channels;
        net.room_size =
            std::max(net.room_size, count * in.channels * columns + 2 * size_t(out.channels) * out.width);
        return true;
    }

    void place(int classes, int64_t trainable, int64_t width) {
        for (Tensor& t : tensors) {
            t.value_at = net.tensors_size;
            t.grad_at = t.value_at + t.value.size();
            net.tensors_size = t.grad_at + t.grad.size();
        }
        for (Op& op : ops) {
            const Geometry &in = tensors[op.in].value, &out = tensors[op.out].value;
            op.partial_at = net.partial_size;
            if (op.kind == Kind::conv) {
                net.partial_size += size_t(out.channels) * (in.channels * op.kernel * op.kernel + 1);
                net.rows_size = std::max(net.rows_size, size_t(2) * out.channels * out.width);
                op.combined_at = net.combined_size;
                op.pairs = by_pairs(op.kernel, op.stride, in, out);
                op.combined_back_at = net.combined_size;
                op.pairs_back = op.input_gradient && by_pairs(op.kernel, 1, out, in);
            }
            op.codes_at = net.codes_size;
            net.codes_size += size_t(out.channels) * out.height * out.width;
            op.statistics_at = net.statistics_size;
            if (op.kind == Kind::norm || op.kind == Kind::norm_relu_pool)
                net.statistics_size += 4 * size_t(in.channels);
            if (op.kind == Kind::linear) net.turned_size = std::max(net.turned_size, in.size());
        }
        net.flipped_size = net.partial_size;
        net.ops = ops.data(), net.op_count = int(ops.size());
        net.tensors = tensors.data();
        net.trainable = trainable, net.width = width, net.classes = classes;
    }
};

// ---- threads ----------------------------------------------------------------------------------

struct Free {
    void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

Memory zeros(size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) throw std::bad_alloc();
    std::memset(p, 0, bytes);
    return Memory(p);
}

// Memory kept from call to call: fresh pages would cost several steps of a small model. A piece is
// zero when it is new and comes back as it was left.
class Shelf {
public:
    std::shared_ptr<void> take(size_t bytes) {
        Memory piece;
        {
            std::lock_guard lock(mutex_);
            if (auto found = free_.extract(bytes)) piece = std::move(found.mapped());
        }
        if (!piece) piece = zeros(bytes);
        return {piece.release(), [this, bytes](void* p) {
                    std::lock_guard lock(mutex_);
                    free_.emplace(bytes, Memory(p));
                }};
    }

private:
    std::mutex mutex_;
    std::multimap<size_t, Memory> free_;
};

// Clients 0 … count − 1, each taken by the next free thread; Ctrl-C is looked for every 50 ms.
template <class F>
void for_each_client(int threads, F work) {
    demand(threads >= 1, "threads must be at least 1");
    std::atomic<int64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable finished;
    int running = 0;
    std::string problem;
    auto loop = [&](int thread) {
        try {
            work(thread, next, stop);
        } catch (const std::exception& error) {
            stop = true;
            std::lock_guard lock(mutex);
            problem = error.what();
        }
        std::lock_guard lock(mutex);
        if (--running == 0) finished.notify_all();
    };
    std::vector<std::thread> pool;
    bool interrupted = false;
    {
        nb::gil_scoped_release release;
        running = threads;
        try {
            while (int(pool.size()) < threads) pool.emplace_back(loop, int(pool.size()));
        } catch (const std::system_error&) {
            stop = true;
            std::lock_guard lock(mutex);
            running -= threads - int(pool.size());
            problem = "the machine can't start " + std::to_string(threads) + " threads";
        }
        std::unique_lock lock(mutex);
        while (running &&
               !finished.wait_for(lock, std::chrono::milliseconds(50), [&] { return running == 0; })) {
            lock.unlock();
            {
                nb::gil_scoped_acquire acquire;
                if (!interrupted && PyErr_CheckSignals() != 0) interrupted = stop = true;
            }
            lock.lock();
        }
        lock.unlock();
        for (std::thread& t : pool) t.join();
    }
    if (interrupted) throw nb::python_error();
    if (!problem.empty()) throw std::runtime_error(problem);
}

// ---- the class Python sees --------------------------------------------------------------------

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Maybe = std::optional<Array<T, N>>;

class Runner {
public:
    Runner(const std::vector<Layer>& layers, std::vector<int> shape, int classes, int64_t trainable,
           int64_t width, const std::string& isa)
        : plan_(layers, std::move(shape), classes, trainable, width) {
        for (const Backend* candidate : usable_backends())
            if (isa.empty() || isa == candidate->name) {
                backend_ = candidate;
                break;
            }
        demand(backend_ != nullptr, "this machine can't run the instruction set '" + isa + "'");
    }

    std::string isa() const { return backend_->name; }

    // Rows `clients` of `rows` and of everything else that has a row per client are trained in place.
    void train(Array<float, 2> rows, nb::object momentum, nb::object anchor, nb::object offset, nb::object mu,
               nb::object free, Array<float, 1> lr, float factor, float decay, Array<const float, 2> x,
               Array<const int64_t, 1> y, Array<const int64_t, 1> clients, Array<const int64_t, 1> index,
               Array<const int64_t, 2> offsets, Array<const uint64_t, 1> keys, int threads) {
        const int64_t m = int64_t(rows.shape(0)), n = int64_t(clients.shape(0)),
                      steps = int64_t(offsets.shape(1)) - 1;
        const Network& net = plan_.net;
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
        for (int64_t i = 0; i < n; i++)  // each at most once: threads must not share a row
            demand(clients.data()[i] > (i ? clients.data()[i - 1] : -1) && clients.data()[i] < m,
                   "clients must be rows in rising order");
        float* v = nullptr;
        if (!momentum.is_none())
            v = fits(nb::cast<Array<float, 2>>(momentum, false), net.trainable, "momentum");
        const float *a = read_only(anchor, "anchor"), *off = read_only(offset, "offset"), *pull = nullptr;
        if (!mu.is_none()) {
            auto got = nb::cast<Array<const float, 1>>(mu, false);
            demand(int64_t(got.shape(0)) == net.trainable, "mu needs one entry per trainable column");
            pull = got.data();
        }
        const bool* loose = nullptr;
        if (!free.is_none()) {
            auto got = nb::cast<Array<const bool, 1>>(free, false);
            demand(int64_t(got.shape(0)) == net.trainable, "free needs one entry per trainable column");
            loose = got.data();
        }
        check_samples(x, y, index);
        const auto [smallest, largest] = check_offsets(offsets.data(), n, steps + 1, int64_t(index.shape(0)));
        for (const Op& op : plan_.ops) {
            const Geometry& in = plan_.tensors[op.in].value;
            demand(op.mean < 0 || smallest * in.height * in.width > 1,
                   "BatchNorm needs more than one value per channel; a batch has one sample");
        }
        for_each_client(threads, [&](int, std::atomic<int64_t>& next, std::atomic<bool>& stop) {
            const auto work = workspace(largest), gradient = shelf_.take(net.trainable * sizeof(float)),
                       start = shelf_.take(net.width * sizeof(float));
            float* g = static_cast<float*>(gradient.get());
            for (int64_t j; !stop && (j = next++) < n;) {
                const int64_t i = clients.data()[j];
                float* row = rows.data() + i * net.width;
                std::memcpy(start.get(), row, net.width * sizeof(float));
                const Update update{v ? v + i * net.trainable : nullptr,
                                    a ? a + i * net.width : static_cast<float*>(start.get()),
                                    off ? off + i * net.width : nullptr,
                                    pull,
                                    loose,
                                    lr.data()[i],
                                    factor,
                                    decay};
                for (int64_t q = 0; q < steps && !stop; q++) {
                    const int64_t *at = offsets.data() + j * (steps + 1) + q, count = at[1] - at[0];
                    if (count == 0) break;  // a client that takes fewer steps
                    const Batch batch{x.data(), x.shape(1), y.data(), index.data() + at[0], int(count)};
                    backend_->gradient(net, row, batch, Mode::train,
                                       keys.data()[j] + uint64_t(q) * 0xD1B54A32D192ED03ull, work.get(), g);
                    backend_->update(net, row, g, update);
                }
            }
        });
    }

    // The samples of client i are index[offsets[i] … offsets[i + 1]), its model is row which[i].
    void logits(Array<const float, 2> rows, Array<const int64_t, 1> which, Array<const float, 2> x,
                Array<const int64_t, 1> index, Array<const int64_t, 1> offsets, Array<float, 2> out,
                const std::string& mode, int batch, int threads) {
        const Network& net = plan_.net;
        demand(out.shape(0) == index.shape(0) && int64_t(out.shape(1)) == net.classes,
               "out has the wrong shape");
        check_samples(x, std::nullopt, index);
        evaluate(rows, which, x, nullptr, index, offsets, mode, batch, threads, [&](void* work) {
            return [&, work](int64_t, float* row, const Batch& part, Mode how) {
                float* to = out.data() + (part.rows - index.data()) * net.classes;
                backend_->forward(net, row, part, how, 0, work, to);
            };
        });
    }

    // out[i] = the gradient of client i's mean loss over its samples.
    void gradients(Array<const float, 2> rows, Array<const int64_t, 1> which, Array<const float, 2> x,
                   Array<const int64_t, 1> y, Array<const int64_t, 1> index, Array<const int64_t, 1> offsets,
                   Array<float, 2> out, const std::string& mode, int batch, int threads) {
        const Network& net = plan_.net;
        demand(out.shape(0) == which.shape(0) && int64_t(out.shape(1)) == net.trainable,
               "out has the wrong shape");
        check_samples(x, y, index);
        std::fill(out.data(), out.data() + out.size(), 0.f);
        evaluate(rows, which, x, y.data(), index, offsets, mode, batch, threads, [&](void* work) {
            return [&, work, g = std::vector<float>(net.trainable)](int64_t i, float* row, const Batch& part,
                                                                    Mode how) mutable {
                backend_->gradient(net, row, part, how, 0, work, g.data());
                const float share = float(part.count) / float(offsets.data()[i + 1] - offsets.data()[i]);
                float* to = out.data() + i * net.trainable;
                for (int64_t k = 0; k < net.trainable; k++) to[k] += share * g[k];
            };
        });
    }

private:
    // Every client's samples in batches, without changing its row: `make(workspace)` gives each thread
    // its function of (client, row, batch, mode).
    template <class Make>
    void evaluate(const Array<const float, 2>& rows, const Array<const int64_t, 1>& which,
                  const Array<const float, 2>& x, const int64_t* y, const Array<const int64_t, 1>& index,
                  const Array<const int64_t, 1>& offsets, const std::string& mode, int batch, int threads,
                  Make make) {
        const Network& net = plan_.net;
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
        for_each_client(threads, [&](int, std::atomic<int64_t>& next, std::atomic<bool>& stop) {
            const auto work = workspace(batch);
            auto run = make(work.get());
            for (int64_t i; !stop && (i = next++) < m;) {
                // Only training writes to a row.
                float* row = const_cast<float*>(rows.data()) + which.data()[i] * net.width;
                for (int64_t from = offsets.data()[i]; from < offsets.data()[i + 1] && !stop; from += batch) {
                    const int count = int(std::min<int64_t>(batch, offsets.data()[i + 1] - from));
                    run(i, row, Batch{x.data(), x.shape(1), y, index.data() + from, count}, how);
                }
            }
        });
    }

    // For batches of up to so many samples; pieces of the same size are laid out alike.
    std::shared_ptr<void> workspace(int batch) {
        std::shared_ptr<void> work = shelf_.take(backend_->workspace_bytes(plan_.net, batch));
        *static_cast<int*>(work.get()) = (batch + backend_->lanes - 1) / backend_->lanes;
        return work;
    }

    void check_samples(const Array<const float, 2>& x, const Maybe<const int64_t, 1>& y,
                       const Array<const int64_t, 1>& index) const {
        const Geometry& in = plan_.tensors.front().value;
        demand(x.shape(1) == size_t(in.channels) * in.height * in.width, "samples have the wrong size");
        const int64_t n = int64_t(x.shape(0));
        if (y) {
            demand(int64_t(y->shape(0)) == n, "there must be one label per sample");
            for (int64_t i = 0; i < n; i++)
                demand(y->data()[i] >= 0 && y->data()[i] < plan_.net.classes, "a label is out of range");
        }
        for (size_t i = 0; i < index.shape(0); i++)
            demand(index.data()[i] >= 0 && index.data()[i] < n, "index names a sample that is not there");
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

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // interpreters exit with objects alive; that is no leak of ours
    m.doc() = "Hand-written training of small networks on the CPU.";
    nb::class_<Layer>(m, "Layer")
        .def(
            "__init__",
            [](Layer* self, std::string kind, int kernel, int stride, int pad, int outputs, int64_t weight,
               int64_t bias, int64_t mean, int64_t variance, float eps, float momentum, float rate) {
                new (self) Layer{std::move(kind), kernel, stride,   pad, outputs, weight, bias, mean,
                                 variance,        eps,    momentum, rate};
            },
            nb::arg("kind"), nb::kw_only(), nb::arg("kernel") = 0, nb::arg("stride") = 1, nb::arg("pad") = 0,
            nb::arg("outputs") = 0, nb::arg("weight") = -1, nb::arg("bias") = -1, nb::arg("mean") = -1,
            nb::arg("variance") = -1, nb::arg("eps") = 0.f, nb::arg("momentum") = 0.f, nb::arg("rate") = 0.f);
    nb::class_<Runner>(m, "Runner")
        .def(nb::init<const std::vector<Layer>&, std::vector<int>, int, int64_t, int64_t,
                      const std::string&>(),
             nb::arg("layers"), nb::arg("shape"), nb::arg("classes"), nb::arg("trainable"), nb::arg("width"),
             nb::arg("isa") = "")
        .def_prop_ro("isa", &Runner::isa)
        .def("train", &Runner::train, nb::arg("rows").noconvert(), nb::arg("momentum").none(),
             nb::arg("anchor").none(), nb::arg("offset").none(), nb::arg("mu").none(), nb::arg("free").none(),
             nb::arg("lr").noconvert(), nb::arg("factor"), nb::arg("decay"), nb::arg("x").noconvert(),
             nb::arg("y").noconvert(), nb::arg("clients").noconvert(), nb::arg("index").noconvert(),
             nb::arg("offsets").noconvert(), nb::arg("keys").noconvert(), nb::arg("threads"))
        .def("logits", &Runner::logits, nb::arg("rows").noconvert(), nb::arg("which").noconvert(),
             nb::arg("x").noconvert(), nb::arg("index").noconvert(), nb::arg("offsets").noconvert(),
             nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("batch"), nb::arg("threads"))
        .def("gradients", &Runner::gradients, nb::arg("rows").noconvert(), nb::arg("which").noconvert(),
             nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("index").noconvert(),
             nb::arg("offsets").noconvert(), nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("batch"),
             nb::arg("threads"));
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Backend* b : usable_backends()) names.emplace_back(b->name);
        return names;
    });
}
