// The loss: the mean over a batch of cross-entropy, plain or weighted and smoothed, or of squared errors.
#pragma once
#include <cmath>

#include "pass.h"

namespace WECFL_ISA {

// Writes the gradient of the last tensor; lanes beyond the batch get zero. With p = softmax(z) and the
// class t it is, for each sample, 1/count times the sample's weight times
//   plain     p_c − [c = t]
//   weighted  (1 − s)·w_t·(p_c − [c = t]) + s/C·(p_c·Σw − w_c)
//   squares   2·(z_c − y_c)/C
// Here z is the output plus the sample's bias.
static void loss_gradient(const Pass& p) {
    const int last = p.net.output;
    const Geometry &g = p.tensor(last).value, &h = p.tensor(last).grad;
    const int classes = p.net.classes;
    const LossOptions& loss = p.net.loss;
    float weight_sum = 0;
    for (int c = 0; c < classes && loss.kind == Loss::weighted; c++) weight_sum += loss.weights[c];
    for (int s = 0; s < p.blocks * LANES; s++) {
        const float* z = p.value(last, s / LANES) + s % LANES;
        float* d = p.grad(last, s / LANES) + s % LANES;
        auto at = [&](const Geometry& geo, int c) { return geo.at(c, 0, 0) * LANES; };
        if (s >= p.batch.count) {
            for (int c = 0; c < classes; c++) d[at(h, c)] = 0;
            continue;
        }
        const float* bias = p.batch.bias ? p.batch.bias + size_t(s) * classes : nullptr;
        auto output = [&](int c) { return bias ? z[at(g, c)] + bias[c] : z[at(g, c)]; };
        if (loss.kind == Loss::squares) {
            const float* y = p.batch.targets.numbers + p.batch.rows[s] * classes;
            for (int c = 0; c < classes; c++)
                d[at(h, c)] = 2 * (output(c) - y[c]) / (float(classes) * p.batch.all());
            continue;
        }
        float top = output(0);
        for (int c = 1; c < classes; c++) top = output(c) > top ? output(c) : top;
        float norm = 0;
        for (int c = 0; c < classes; c++) norm += d[at(h, c)] = std::exp(output(c) - top);
        const int64_t truth = p.batch.targets.labels[p.batch.rows[s]];
        if (loss.kind == Loss::plain) {
            for (int c = 0; c < classes; c++)
                d[at(h, c)] = (d[at(h, c)] / norm - (c == truth)) / p.batch.all();
            continue;
        }
        const float own = (1 - loss.smoothing) * loss.weights[truth], every = loss.smoothing / classes;
        for (int c = 0; c < classes; c++) {
            const float share = d[at(h, c)] / norm;
            d[at(h, c)] = (own * (share - (c == truth)) + every * (share * weight_sum - loss.weights[c])) /
                          p.batch.all();
        }
    }
    for (int s = 0; p.batch.weights && s < p.batch.count; s++) {
        float* d = p.grad(last, s / LANES) + s % LANES;
        for (int c = 0; c < classes; c++) d[h.at(c, 0, 0) * LANES] *= p.batch.weights[s];
    }
}

}  // namespace WECFL_ISA
