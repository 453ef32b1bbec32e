"""Where WeCFL's weighting matters: quantity skew × separation of groups, WeCFL against FeSEM.

The two methods differ in one thing: WeCFL counts a client by its data when it clusters, FeSEM
counts all clients alike. Both aggregate by data. The clients here hold samples x ~ N(0, I) with the
label argmax_c (W_k x)_c, where W_k = V + s·U_k for group k: s is how far the groups are apart.
Sizes follow rank^(−a): a is the quantity skew, and a = 0 means clients of equal size.

    python benchmarks/weighting.py          # writes docs/results/weighting.csv, .md and the figure
    python benchmarks/weighting.py --show   # makes the table and the figure from stored runs
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from rich.progress import track

import wecfl
from wecfl import methods, rng
from wecfl.core.types import Int
from wecfl.report.figures.files import save, styled

CLIENTS, GROUPS, FEATURES, CLASSES = 60, 4, 20, 4
SAMPLES, MIN_SAMPLES, TEST_SAMPLES = 3600, 8, 100
"""Training samples in all and at least for each client; test samples of each client."""
SKEWS, SEPARATIONS = (0.0, 0.5, 1.0, 1.5), (0.25, 0.5, 1.0, 2.0)
ROUNDS, RATE = 15, 0.05
RESULTS = Path(__file__).parents[1] / "docs" / "results"
SCORES = ("by_data", "by_client", "ari")
"""Accuracy in percent, averaged by data and over clients, and the ARI of the groups."""


def sizes(skew: float, draws: np.random.Generator) -> Int:
    """The number of training samples of each client, in random order."""
    shares = np.arange(1.0, CLIENTS + 1) ** -skew
    wanted = np.round(SAMPLES * shares / shares.sum()).astype(np.int64)
    return draws.permutation(np.maximum(wanted, MIN_SAMPLES))


def federation(skew: float, separation: float, seed: int) -> wecfl.Federation:
    """The clients of one world."""
    draws = rng.stream(seed, "weighting")
    common = draws.normal(size=(CLASSES, FEATURES))
    concepts = common + separation * draws.normal(size=(GROUPS, CLASSES, FEATURES))
    groups = np.arange(CLIENTS) % GROUPS

    def samples(counts: Int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        xs = [draws.normal(size=(n, FEATURES)) for n in counts]
        ys = [(x @ concepts[k].T).argmax(axis=1) for x, k in zip(xs, groups, strict=True)]
        return [x.astype(np.float32) for x in xs], ys

    xs, ys = samples(sizes(skew, draws))
    test = samples(np.full(CLIENTS, TEST_SAMPLES))
    return wecfl.Federation.from_arrays(xs, ys, test=test, groups=groups, classes=CLASSES)


def runs(
    seeds: int,
    separations: Sequence[float] = SEPARATIONS,
    skews: Sequence[float] = SKEWS,
) -> Iterator[dict[str, float | str]]:
    """One row for each world, seed and method."""
    worlds = list(product(separations, skews, range(seeds)))
    for separation, skew, seed in track(worlds, "worlds"):
        clients = federation(skew, separation, seed)
        for method in (methods.wecfl(GROUPS), methods.fesem(GROUPS), methods.fedavg):
            result = wecfl.run(
                clients, method, model="logistic", rounds=ROUNDS, plan=wecfl.Plan(lr=RATE),
                seed=seed, task="classification", measure=wecfl.Measure(objectives=False),
            )  # fmt: skip
            score = 100 * result.clients["accuracy"].to_numpy()
            yield {
                "separation": separation, "skew": skew, "seed": seed, "method": method.name,
                "by_data": float(np.average(score, weights=clients.sizes)),
                "by_client": float(score.mean()), "ari": result.records[-1]["ari"],
            }  # fmt: skip


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """WeCFL minus FeSEM of the same world and seed: means over seeds and their standard errors.

    >>> methods = [("wecfl", 3.0), ("fesem", 1.0)]
    >>> rows = [(name, seed, 1.0, 1.0, b, b, 0.0) for name, b in methods for seed in (0, 1)]
    >>> names = ["method", "seed", "separation", "skew", "by_data", "by_client", "ari"]
    >>> differences(pd.DataFrame(rows, columns=names))["by_data"].tolist()
    [2.0]
    """
    world = ["separation", "skew"]
    paired = frame.pivot(index=[*world, "seed"], columns="method", values=list(SCORES))
    gains = pd.DataFrame({name: paired[name]["wecfl"] - paired[name]["fesem"] for name in SCORES})
    found = gains.groupby(world).agg(["mean", "sem"])
    means = frame.groupby([*world, "method"])["by_data"].mean().unstack()
    return pd.DataFrame(
        {
            **{name: found[name]["mean"] for name in SCORES},
            **{f"{name}_error": found[name]["sem"] for name in SCORES},
            **{method: means[method] for method in means.columns},
        }
    ).reset_index()


def figure(table: pd.DataFrame) -> alt.LayerChart:
    """The difference in each world, in points of accuracy averaged over clients."""
    base = alt.Chart(table).encode(
        x=alt.X("skew:O", title="quantity skew a (0: equal sizes)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("separation:O", title="separation of the groups s", sort="descending"),
    )
    most = float(table["by_client"].abs().max())
    cells = base.mark_rect().encode(
        color=alt.Color(
            "by_client:Q", title="points",
            scale=alt.Scale(scheme="purpleorange", domain=[most, -most]),
        )
    )  # fmt: skip
    words = [
        f"{a:+.1f} ± {b:.1f}" for a, b in zip(table.by_client, table.by_client_error, strict=True)
    ]
    text = alt.Chart(table.assign(words=words)).mark_text(fontSize=13).encode(
        x="skew:O", y=alt.Y("separation:O", sort="descending"), text="words:N",
        color=alt.condition(
            f"abs(datum.by_client) > {most / 2}", alt.value("white"), alt.value("black")
        ),
    )  # fmt: skip
    return (cells + text).properties(
        width=420, height=240, title="WeCFL minus FeSEM: accuracy averaged over clients, in points"
    )


def markdown(table: pd.DataFrame, seeds: int) -> str:
    """The table as a page."""
    head = "| separation | skew | WeCFL | FeSEM | FedAvg | by data | over clients | ARI |"
    lines = [
        "# Where the weighting matters", "",
        "Made by `python benchmarks/weighting.py --show` from `weighting.csv`. Accuracies in",
        "percent, averaged by data; then",
        f"WeCFL minus FeSEM in points, mean ± standard error over {seeds} seeds, paired.", "",
        head, "|" + "---|" * 8,
    ]  # fmt: skip
    for row in table.itertuples():
        pairs = [(row.by_data, row.by_data_error, 2), (row.by_client, row.by_client_error, 2),
                 (row.ari, row.ari_error, 3)]  # fmt: skip
        told = [f"{a:+.{n}f} ± {b:.{n}f}" for a, b, n in pairs]
        cells = [
            f"{row.separation}",
            f"{row.skew}",
            *(f"{x:.2f}" for x in (row.wecfl, row.fesem, row.fedavg)),
            *told,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all worlds, or show what is stored."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    stored = chosen.results / "weighting.csv"
    if not chosen.show:
        found = list(runs(chosen.seeds))
        with stored.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    frame = pd.read_csv(stored)
    table = differences(frame)
    (chosen.results / "weighting.md").write_text(markdown(table, frame["seed"].nunique()))
    for suffix in (".png", ".svg"):
        save(styled(figure(table)), chosen.results / f"fig-weighting{suffix}")
    print(markdown(table, frame["seed"].nunique()))


if __name__ == "__main__":
    main()
