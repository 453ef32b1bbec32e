"""Compare methods over seeds and get the table and the picture a paper would show."""

from pathlib import Path

import wecfl
from wecfl.report.figures.files import save
from wecfl.report.figures.overview import overview
from wecfl.report.tables.results import results

METHODS = [wecfl.methods.fedavg, wecfl.methods.ifca(k=4), wecfl.methods.wecfl(k=4)]
OUT = Path("compare")

folders = []
for seed in (0, 1):
    partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=4)
    fed = wecfl.Federation.from_dataset("digits", partition, clients=16, seed=seed)
    for method in METHODS:
        folder = OUT / f"{method.name}-seed{seed}"
        wecfl.run(fed, method, rounds=10, plan=wecfl.Plan(lr=0.005), seed=seed, folder=folder)
        folders.append(folder)

table = results(folders)  # runs that differ by their seed alone become mean and deviation
print(table[["method", "k", "accuracy", "accuracy_std", "ari", "clusters"]].round(3).to_string())
print(save(overview(folders[: len(METHODS)]), OUT / "compare.png"))
