"""How often a client without drift is taken for one that has drifted: `python benchmarks/drift.py`.

There are five worlds of digits (40 clients in 4 groups, 30 rounds). How soon drift is found and
mended is measured by `wecfl reproduce drift`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, get_args

from wecfl.bilevel.clustering.drift import WatchedBy
from wecfl.config import Config
from wecfl.experiment import run_config
from wecfl.runs.result import Result

CLIENTS, GROUPS, ROUNDS = 40, 4, 30
WORLDS: dict[str, dict[str, Any]] = {
    "rotation": {"partition": "iid", "transform": ("rotation",)},
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


def alarms(seeds: Sequence[int], watch: str) -> None:
    """A table: the share of looks at clients without drift that are alarms, or move a client."""
    print("| world | stated rate % | alarms % | moved % | looks |\n|---|---|---|---|---|")
    for rate in (0.01, 0.05):
        for world, choices in WORLDS.items():
            looks = found = moved = 0
            for seed in seeds:
                options = (("recluster", "drift"), ("alarm", rate), ("watch", watch))
                for record in result_of(seed, options=options, **choices).records[WARM_UP - 1 :]:
                    looks += CLIENTS
                    found += len(record["drift"]["found"])
                    moved += len(record["drift"]["moved"])
            shares = f"{100 * found / looks:.2f} | {100 * moved / looks:.2f} | {looks:,}"
            print(f"| {world} | {100 * rate:g} | {shares} |", flush=True)


def main() -> None:
    """Count the alarms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--watch", choices=get_args(WatchedBy), default="loss")
    chosen = parser.parse_args()
    alarms(chosen.seeds, chosen.watch)


if __name__ == "__main__":
    main()
