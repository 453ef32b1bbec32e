"""What is found when clients' data change, and how soon it is mended: `python benchmarks/drift.py`.

`recovery` runs six kinds of drift on rotated digits (40 clients in 4 groups, 30 rounds, the change
in round 12) with WeCFL that looks for drift, clusters in every round, or keeps its clusters, and
with FedAvg. A run has recovered in the first round in which its accuracy is again within two points
of the mean of the three rounds before the change. `alarms` counts how often a client without drift
is taken for one that has drifted, in five worlds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt
import pandas as pd

from wecfl.config import Config
from wecfl.experiment import run_config
from wecfl.report.figures.curves import curves_panel
from wecfl.report.figures.files import save, styled
from wecfl.runs.result import Result

CLIENTS, GROUPS, ROUNDS, CHANGE = 40, 4, 30, 12
MARGIN = 0.02
"""How much lower than before the change an accuracy may be that has recovered."""
KINDS = ("abrupt", "gradual", "recurring", "appear", "vanish", "sensor")
WAYS: dict[str, dict[str, Any]] = {
    "looks for drift": {"options": (("recluster", "drift"),)},
    "looks, K auto": {"options": (("recluster", "drift"),), "clusters": "auto"},
    "clusters in every round": {"options": (("recluster", "every"),)},
    "keeps its clusters": {"options": (("recluster", "settled"),)},
    "FedAvg": {"method": "fedavg", "clusters": 1},
}
ROTATED: dict[str, Any] = {"partition": "iid", "transform": ("rotation",)}
WORLDS: dict[str, dict[str, Any]] = {
    "rotation": ROTATED,
    "permutation": {"partition": "iid", "transform": ("permutation",)},
    "swap": {"partition": "iid", "transform": ("swap",)},
    "labels": {"partition": "clusterwise-dirichlet"},
    "rotation by client": {"partition": "iid", "transform": ("rotation(by=client)",)},
}
WARM_UP = 6
"""The first round whose alarms count: before it there is little to compare a rise with."""


def result_of(seed: int, **choices: Any) -> Result:
    """One run."""
    common: dict[str, Any] = {
        "clients": CLIENTS, "groups": GROUPS, "clusters": GROUPS, "lr": 0.03, "rounds": ROUNDS,
        "objectives": False, "workers": 1, "seed": seed,
    }  # fmt: skip
    return run_config(Config(**(common | choices)))


def rounds_to_recover(records: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of rounds after the change until the accuracy is what it was; None: never."""
    accuracy = [record["accuracy"] for record in records]
    before = mean(accuracy[CHANGE - 4 : CHANGE - 1])
    after = enumerate(accuracy[CHANGE - 1 :])
    return next((rounds for rounds, value in after if value >= before - MARGIN), None)


def recovery(seeds: Sequence[int], figure: Path | None) -> None:
    """A table: rounds to recover for each seed, the accuracy and the ARI at the end."""
    curves = []
    print("| drift | method | rounds to recover | accuracy % | ARI |\n|---|---|---|---|---|")
    for kind in KINDS:
        for way, choices in WAYS.items():
            results = [
                result_of(seed, drift=f"{kind}(round={CHANGE})", **(ROTATED | choices))
                for seed in seeds
            ]
            curves += [
                {"kind": kind, "name": way, "round": r["round"], "accuracy": r["accuracy"]}
                for result in results
                for r in result.records
            ]
            ends = [result.records[-1] for result in results]
            rounds = [rounds_to_recover(result.records) for result in results]
            told = ", ".join("never" if each is None else str(each) for each in rounds)
            scores = f"{100 * mean(end['accuracy'] for end in ends):.1f}"
            agreement = f"{mean(end['ari'] for end in ends):.2f}"
            print(f"| {kind} | {way} | {told} | {scores} | {agreement} |", flush=True)

    if figure:
        save(styled(picture(pd.DataFrame(curves))), figure)


def picture(curves: pd.DataFrame) -> alt.HConcatChart:
    """Accuracy over the rounds where clients change their group, and where a group appears.

    K-means in every round and kept clusters coincide, so only one of them is drawn.
    """
    shown = curves[curves["name"] != "keeps its clusters"]
    change = alt.Chart(pd.DataFrame({"round": [CHANGE]})).mark_rule(color="#888", strokeDash=[4, 4])
    panels = [
        curves_panel(shown[shown["kind"] == kind], "accuracy", title=title)
        + change.encode(x="round:Q")
        for kind, title in (
            ("abrupt", "three in ten clients change their group"),
            ("appear", "a group appears"),
        )
    ]
    return alt.hconcat(*panels, spacing=30)


def alarms(seeds: Sequence[int]) -> None:
    """A table: the share of looks at clients without drift that are alarms, or move a client."""
    print("| world | stated rate % | alarms % | moved % | looks |\n|---|---|---|---|---|")
    for rate in (0.01, 0.05):
        for world, choices in WORLDS.items():
            looks = found = moved = 0
            for seed in seeds:
                options = (("recluster", "drift"), ("alarm", rate))
                for record in result_of(seed, options=options, **choices).records[WARM_UP - 1 :]:
                    looks += CLIENTS
                    found += len(record["drift"]["found"])
                    moved += len(record["drift"]["moved"])
            shares = f"{100 * found / looks:.2f} | {100 * moved / looks:.2f} | {looks:,}"
            print(f"| {world} | {100 * rate:g} | {shares} |", flush=True)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["recovery", "alarms"])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--figure", type=Path, help="with recovery: a file for the curves")
    chosen = parser.parse_args()
    if chosen.do == "alarms":
        return alarms(chosen.seeds)
    return recovery(chosen.seeds, chosen.figure)


if __name__ == "__main__":
    main()
