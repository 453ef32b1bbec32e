"""Use your own data: arrays in memory, or a folder with one .npz file per client."""

import tempfile
from pathlib import Path

import numpy as np

import wecfl

# Six sites measure eight quantities. At half of them one sensor is wired the other way round:
# there the same measurements mean the opposite, and we do not know which sites these are.
rng = np.random.default_rng(0)
xs, ys = [], []
for site in range(6):
    x = rng.normal(size=(rng.integers(80, 200), 8)).astype(np.float32)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int)
    if site % 2:
        x[:, :2] *= -1
    xs.append(x)
    ys.append(y)

fed = wecfl.Federation.from_arrays(xs, ys, names=[f"site {i}" for i in range(6)])

# The same from files: one .npz with x and y (and optionally x_test, y_test) per client.
with tempfile.TemporaryDirectory() as folder:
    for name, x, y in zip(fed.names, xs, ys, strict=True):
        np.savez(Path(folder) / f"{name}.npz", x=x, y=y)
    from_files = wecfl.Federation.from_folder(folder)
    print(f"{len(from_files)} clients from files, {from_files.sizes} training samples")

for method in (wecfl.methods.fedavg, wecfl.methods.wecfl(k=2)):
    result = wecfl.run(fed, method, model="logistic", rounds=20, plan=wecfl.Plan(lr=0.05))
    print(f"\n{method.name}")
    print(result.clients.drop(columns="group").round(2).to_string(index=False))
