// The loss: mean cross-entropy of the logits.
#pragma once
#include <cmath>

#include "pass.h"

namespace WECFL_ISA {

// Writes the gradient of the last tensor; lanes beyond the batch get zero.
static void loss_gradient(const Pass& p) {
    const int last = p.net.ops[p.net.op_count - 1].out;
    const Geometry &g = p.tensor(last).value, &h = p.tensor(last).grad;
    const int classes = p.net.classes;
    for (int s = 0; s < p.blocks * LANES; s++) {
        const float* z = p.value(last, s / LANES) + s % LANES;
        float* d = p.grad(last, s / LANES) + s % LANES;
        auto at = [&](const Geometry& geo, int c) { return geo.at(c, 0, 0) * LANES; };
        if (s >= p.batch.count) {
            for (int c = 0; c < classes; c++) d[at(h, c)] = 0;
            continue;
        }
        float top = z[0];
        for (int c = 1; c < classes; c++) top = z[at(g, c)] > top ? z[at(g, c)] : top;
        float norm = 0;
        for (int c = 0; c < classes; c++) norm += d[at(h, c)] = std::exp(z[at(g, c)] - top);
        const int64_t truth = p.batch.labels[p.batch.rows[s]];
        for (int c = 0; c < classes; c++) d[at(h, c)] = (d[at(h, c)] / norm - (c == truth)) / p.batch.count;
    }
}

}  // namespace WECFL_ISA
