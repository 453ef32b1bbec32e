// Where a general convolution reads, and its gradient.
#include <algorithm>

#include "planner.h"

namespace wecfl {
namespace {

// Along one side: pixels v of the input with (v + pad) mod stride = rest, and the taps that reach them.
// With v + pad = stride·a + rest, tap i reads the gradient at a − m, where i·dilation = rest + stride·m.
struct Side {
    int first = 0, count = 0, start = 0;  // the first such pixel, how many, and a of the first
    std::vector<std::pair<int, int>> taps;  // i and m
};

Side side(int size, int kernel, int stride, int pad, int dilation, int rest) {
    Side s;
    s.start = pad <= rest ? 0 : (pad - rest + stride - 1) / stride;
    s.first = stride * s.start + rest - pad;
    s.count = s.first < size ? (size - 1 - s.first) / stride + 1 : 0;
    for (int i = 0; i < kernel; i++)
        if (i * dilation % stride == rest % stride) s.taps.emplace_back(i, (i * dilation - rest) / stride);
    return s;
}

}  // namespace

int AnyConvTables::border(const Op& op, const Geometry& in, const Geometry& out) {
    int border = 0;
    auto widen = [&](int size, int count, int kernel, int stride, int pad, int dilation) {
        for (int rest = 0; rest < stride; rest++) {
            const Side s = side(size, kernel, stride, pad, dilation, rest);
            if (!s.count) continue;
            for (auto [i, m] : s.taps)
                border = std::max({border, m - s.start, s.start + s.count - 1 - m - (count - 1)});
        }
    };
    widen(in.height, out.height, op.kernel.y, op.stride.y, op.pad.y, op.dilation.y);
    widen(in.width, out.width, op.kernel.x, op.stride.x, op.pad.x, op.dilation.x);
    return border;
}

AnyConvTables::AnyConvTables(const Op& op, int groups, const Geometry& in, const Geometry& out_grad) {
    const int inputs = in.channels / groups, outputs = out_grad.channels / groups, area = op.kernel.area();
    for (int c = 0; c < inputs; c++)
        for (int i = 0; i < op.kernel.y; i++)
            for (int j = 0; j < op.kernel.x; j++)
                offsets_.push_back(int32_t(in.at(c, i * op.dilation.y, j * op.dilation.x) - in.at(0, op.pad.y, op.pad.x) +
                                           in.at(0, 0, 0)));
    std::vector<int32_t> group_order;  // of the first group
    for (int ry = 0; ry < op.stride.y; ry++)
        for (int rx = 0; rx < op.stride.x; rx++) {
            const Side y = side(in.height, op.kernel.y, op.stride.y, op.pad.y, op.dilation.y, ry);
            const Side x = side(in.width, op.kernel.x, op.stride.x, op.pad.x, op.dilation.x, rx);
            std::vector<int32_t> offsets;
            for (int o = 0; o < outputs; o++)
                for (auto [i, my] : y.taps)
                    for (auto [j, mx] : x.taps)
                        offsets.push_back(int32_t(ptrdiff_t(o * out_grad.plane()) - my * out_grad.columns() - mx));
            phases_.push_back({{y.first, x.first}, {y.count, x.count}, int32_t(out_grad.at(0, y.start, x.start)),
                               int32_t(group_order.size()), {nullptr, int(offsets.size())}});
            phase_offsets_.push_back(std::move(offsets));
            for (int c = 0; c < inputs; c++)
                for (int o = 0; o < outputs; o++)
                    for (auto [i, my] : y.taps)
                        for (auto [j, mx] : x.taps)
                            group_order.push_back((o * inputs + c) * area + i * op.kernel.x + j);
        }
    for (size_t n = 0; n < phases_.size(); n++) phases_[n].taps.offsets = phase_offsets_[n].data();
    for (int g = 0; g < groups; g++)
        for (int32_t n : group_order) order_.push_back(g * outputs * inputs * area + n);
    conv = {groups, inputs, outputs, {offsets_.data(), int(offsets_.size())}, phases_.data(), int(phases_.size()),
            order_.data()};
}

}  // namespace wecfl
