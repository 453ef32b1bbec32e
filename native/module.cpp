// The Python module: names and arguments of what Python may call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "runner.h"

namespace nb = nanobind;
using namespace wecfl;

// One number for both sides, or one for each.
using Side = std::variant<int64_t, Pair>;
static Pair both(const Side& side) {
    if (const int64_t* number = std::get_if<int64_t>(&side)) return {*number, *number};
    return std::get<Pair>(side);
}

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // interpreters exit with objects alive; that is no leak of ours
    m.doc() = "Hand-written training of small networks on the CPU.";
    nb::class_<Layer>(m, "Layer")
        .def(
            "__init__",
            [](Layer* self, std::string kind, std::string place, std::vector<int> reads, Side kernel, Side stride,
               Side pad, Side dilation, int64_t groups, int inputs, int outputs, int64_t weight, int64_t bias,
               int64_t inner_weight, int64_t inner_bias, int64_t mean, int64_t variance, float eps, float momentum,
               float rate, bool ceil, bool count_padding, bool reverse, bool causal, int number) {
                new (self) Layer{std::move(kind), std::move(place), std::move(reads), both(kernel), both(stride),
                                 both(pad),       both(dilation),   groups,           inputs,       outputs,
                                 weight,          bias,             inner_weight,     inner_bias,   mean,
                                 variance,        eps,              momentum,         rate,         ceil,
                                 count_padding,   reverse,          causal,           number};
            },
            nb::arg("kind"), nb::kw_only(), nb::arg("place") = "", nb::arg("reads") = std::vector<int>(),
            nb::arg("kernel") = 0, nb::arg("stride") = 1, nb::arg("pad") = 0, nb::arg("dilation") = 1,
            nb::arg("groups") = 1, nb::arg("inputs") = -1,
            nb::arg("outputs") = 0, nb::arg("weight") = -1, nb::arg("bias") = -1,
            nb::arg("inner_weight") = -1, nb::arg("inner_bias") = -1, nb::arg("mean") = -1, nb::arg("variance") = -1,
            nb::arg("eps") = 0.f, nb::arg("momentum") = 0.f, nb::arg("rate") = 0.f,
            nb::arg("ceil") = false, nb::arg("count_padding") = true, nb::arg("reverse") = false,
            nb::arg("causal") = false, nb::arg("number") = -1);
    nb::class_<Optimizer>(m, "Optimizer")
        .def(nb::init<const std::string&, std::vector<int64_t>, double, double, double, double, double>(),
             nb::arg("name"), nb::arg("stops"), nb::kw_only(), nb::arg("momentum") = 0.,
             nb::arg("weight_decay") = 0., nb::arg("beta2") = 0.999, nb::arg("eps") = 1e-8,
             nb::arg("max_gradient") = 0.);
    nb::class_<Runner>(m, "Runner")
        .def(nb::init<const std::vector<Layer>&, const std::vector<int>&, int, int64_t, int64_t,
                      const std::string&, const std::string&, const std::vector<float>&, float>(),
             nb::arg("layers"), nb::arg("shape"), nb::arg("classes"), nb::arg("trainable"), nb::arg("width"),
             nb::arg("isa") = "", nb::arg("loss") = "cross-entropy",
             nb::arg("weights") = std::vector<float>(), nb::arg("smoothing") = 0.f)
        .def_prop_ro("isa", &Runner::isa)
        .def("train", &Runner::train, nb::arg("rows").noconvert(), nb::arg("buffers").none(),
             nb::arg("anchor").none(), nb::arg("offset").none(), nb::arg("mu").none(), nb::arg("free").none(),
             nb::arg("lr").noconvert(), nb::arg("optimizer"), nb::arg("x").noconvert(),
             nb::arg("y"), nb::arg("clients").noconvert(), nb::arg("index").noconvert(),
             nb::arg("offsets").noconvert(), nb::arg("keys").noconvert(), nb::arg("threads"),
             nb::arg("weights").none() = nb::none(), nb::arg("bias").none() = nb::none())
        .def("logits", &Runner::logits, nb::arg("rows").noconvert(), nb::arg("which").noconvert(),
             nb::arg("x").noconvert(), nb::arg("index").noconvert(), nb::arg("offsets").noconvert(),
             nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("batch"), nb::arg("threads"))
        .def("gradients", &Runner::gradients, nb::arg("rows").noconvert(), nb::arg("which").noconvert(),
             nb::arg("x").noconvert(), nb::arg("y"), nb::arg("index").noconvert(),
             nb::arg("offsets").noconvert(), nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("batch"),
             nb::arg("threads"));
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Backend* b : usable_backends()) names.emplace_back(b->name);
        return names;
    });
}
