"""Regression: ten sites measure the same thing, half of them with a sensor of the other sign.

One model for all learns the mean of two opposite rules, which is nothing. Two cluster models learn
both. The headline is the RMSE, so low values are good; R² says the same without a unit.
"""

import numpy as np

import wecfl

rng = np.random.default_rng(0)
slopes = np.array([3.0, -2.0, 1.0, 0.0])
xs = [rng.normal(size=(80, 4)).astype(np.float32) for _ in range(10)]
ys = [x @ slopes * (-1) ** i + 0.2 * rng.normal(size=80) for i, x in enumerate(xs)]

federation = wecfl.Federation.from_arrays(xs, ys)  # float targets: a regression
plan = wecfl.Plan(lr=0.05)
for method in (wecfl.methods.fedavg, wecfl.methods.wecfl(k=2)):
    result = wecfl.run(federation, method, model="logistic", rounds=10, plan=plan, seed=0)
    summary = result.summary
    print(
        f"{method.name:<7} RMSE {summary['rmse']:.2f} (worst tenth {summary['worst_decile']:.2f}), "
        f"R² {summary['r2']:.2f}, clusters {result.labels.tolist()}"
    )
