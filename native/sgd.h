// The steps of gradient descent.
#pragma once
#include <algorithm>
#include <cmath>

#include "plan.h"

namespace WECFL_ISA {
using wecfl::Descent;
using wecfl::Network;
using wecfl::Update;

// Shortens the gradient of the columns that move to max_gradient, as torch.nn.utils.clip_grad_norm_ does.
static void clip(int64_t n, float* __restrict g, const Update& u) {
    if (u.free)
        for (int64_t i = 0; i < n; i++) g[i] = u.free[i] ? g[i] : 0;
    double square = 0;
    for (int64_t i = 0; i < n; i++) square += double(g[i]) * g[i];
    const double share = u.rule.max_gradient / (std::sqrt(square) + 1e-6);
    if (share < 1)
        for (int64_t i = 0; i < n; i++) g[i] *= float(share);
}

// w ← w − η·m̂ / (√v̂ + ε). Each tensor counts its own steps, which correct for moments that start at 0.
static void adaptive(int64_t n, float* __restrict w, const float* __restrict g, const Update& u) {
    float *__restrict m = u.buffer, *__restrict v = u.buffer + n, *__restrict counts = u.buffer + 2 * n;
    const double beta1 = u.rule.momentum, beta2 = u.rule.beta2;
    const float fresh1 = float(1 - beta1), fresh2 = float(1 - beta2), kept2 = float(beta2), eps = float(u.rule.eps);
    const float shrink = u.rule.descent == Descent::adamw ? float(1 - u.lr * u.rule.weight_decay) : 1.f;
    for (int64_t tensor = 0, from = 0; tensor < u.tensors; from = u.stops[tensor++]) {
        const int64_t to = u.stops[tensor];
        if (u.free && std::none_of(u.free + from, u.free + to, [](bool free) { return free; })) continue;
        const double count = counts[tensor] += 1;
        const float length = float(u.lr / (1 - std::pow(beta1, count)));
        const float scale = float(std::sqrt(1 / (1 - std::pow(beta2, count))));
        auto step = [&](int64_t i) {
            m[i] += fresh1 * (g[i] - m[i]);
            v[i] = kept2 * v[i] + fresh2 * g[i] * g[i];
            w[i] = shrink * w[i] - length * m[i] / (std::sqrt(v[i]) * scale + eps);
        };
        if (u.free) {
            for (int64_t i = from; i < to; i++)
                if (u.free[i]) step(i);
        } else
            for (int64_t i = from; i < to; i++) step(i);
    }
}

// One step along g, which is clipped first, and gets decay·w + mu·(w − anchor) + offset added.
static void update(const Network& net, float* __restrict w, float* __restrict g, const Update& u) {
    const int64_t n = net.trainable;
    const float factor = float(u.rule.momentum), decay = float(u.rule.weight_decay);
    if (u.rule.max_gradient != 0) clip(n, g, u);
    if (decay != 0 && u.rule.descent != Descent::adamw)
        for (int64_t i = 0; i < n; i++) g[i] += decay * w[i];
    if (u.mu)
        for (int64_t i = 0; i < n; i++) g[i] += u.mu[i] * (w[i] - u.anchor[i]);
    if (u.offset)
        for (int64_t i = 0; i < n; i++) g[i] += u.offset[i];
    if (u.rule.adaptive()) return adaptive(n, w, g, u);
    float* __restrict v = u.buffer;
    if (u.rule.descent == Descent::nesterov) {
        for (int64_t i = 0; i < n; i++) {
            if (u.free && !u.free[i]) continue;
            v[i] = factor * v[i] + g[i];
            w[i] -= u.lr * (g[i] + factor * v[i]);
        }
        return;
    }
    if (u.free) {  // a column that is not free keeps its momentum as well
        for (int64_t i = 0; i < n; i++) {
            if (!u.free[i]) continue;
            if (v) v[i] = factor * v[i] + g[i];
            w[i] -= u.lr * (v ? v[i] : g[i]);
        }
        return;
    }
    if (v)
        for (int64_t i = 0; i < n; i++) {
            v[i] = factor * v[i] + g[i];
            w[i] -= u.lr * v[i];
        }
    else
        for (int64_t i = 0; i < n; i++) w[i] -= u.lr * g[i];
}

}  // namespace WECFL_ISA
