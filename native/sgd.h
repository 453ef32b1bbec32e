// The step of stochastic gradient descent.
#pragma once
#include "plan.h"

namespace WECFL_ISA {
using wecfl::Network;
using wecfl::Update;

// w ← w − η·v with v ← momentum·v + g, where g gets decay·w + mu·(w − anchor) + offset added first.
static void update(const Network& net, float* __restrict w, float* __restrict g, const Update& u) {
    const int64_t n = net.trainable;
    if (u.weight_decay != 0)
        for (int64_t i = 0; i < n; i++) g[i] += u.weight_decay * w[i];
    if (u.mu)
        for (int64_t i = 0; i < n; i++) g[i] += u.mu[i] * (w[i] - u.anchor[i]);
    if (u.offset)
        for (int64_t i = 0; i < n; i++) g[i] += u.offset[i];
    float* __restrict v = u.momentum;
    if (u.free) {  // a column that is not free keeps its momentum as well
        for (int64_t i = 0; i < n; i++) {
            if (!u.free[i]) continue;
            if (v) v[i] = u.momentum_factor * v[i] + g[i];
            w[i] -= u.lr * (v ? v[i] : g[i]);
        }
        return;
    }
    if (v)
        for (int64_t i = 0; i < n; i++) {
            v[i] = u.momentum_factor * v[i] + g[i];
            w[i] -= u.lr * v[i];
        }
    else
        for (int64_t i = 0; i < n; i++) w[i] -= u.lr * g[i];
}

}  // namespace WECFL_ISA
