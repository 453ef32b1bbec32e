"""Safeguards for `--clusters auto`: `python benchmarks/auto_k_safeguards.py runs --out FILE`.

A safeguard refuses a division when it is confirmed, from what is known then: the gain over one
model, its standard error and the silhouette, in the look that found the division and in the next
round. `runs` adds a line to FILE for each case for choosing that is not in it yet: worlds of the
battery (`auto_k_battery.py`) with groups, clients with Dirichlet 0.3, and MNIST with an affine
shift by group as in the gallery (`--world`). `show` tells what each safeguard would refuse.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from auto_k_battery import GROUPED, MIN_RIGHT_ARI, ROUNDS, cached, cases, federation
from wecfl import Federation, Measure, Plan, methods, partitions, run, transforms
from wecfl.errors import PartitionError

WORLDS = ("grouped", "dirichlet", "affine")
AFFINE_ROUNDS = 30
Look = dict[str, float]

SAFEGUARDS: dict[str, Callable[[Look, Look], bool]] = {
    "nothing": lambda found, now: True,
    "silhouette above chance": lambda found, now: now["silhouette"] > now["chance"],
    "silhouette above 1.5 × chance": lambda found, now: now["silhouette"] > 1.5 * now["chance"],
    "gain of both rounds above 3 standard errors": lambda found, now: (
        found["gain"] + now["gain"] > 3 * (found["error"] + now["error"])
    ),
    "gain of the second round above 2": lambda found, now: now["gain"] > 2 * now["error"],
    "gain of the second round above 3": lambda found, now: now["gain"] > 3 * now["error"],
    "gain more than half of the first": lambda found, now: now["gain"] > found["gain"] / 2,
    "gain, extrapolated by a round, above 1": lambda found, now: (
        2 * now["gain"] - found["gain"] > 2 * now["error"] + found["error"]
    ),
}
"""What must hold, in the look that found a division and in the round that confirms it."""


def worlds(world: str, data: str, seeds: list[int]) -> Iterator[tuple[str, int, int, Federation]]:
    """The name, the number of groups, the seed and the clients of each case."""
    if world == "affine":
        for seed in seeds:
            fed = Federation.from_dataset(cached(data), partitions.Iid(), clients=40, seed=seed)
            yield world, 4, seed, fed.transformed(transforms.Affine(), groups=4)  # maps of seed 0
        return
    names = GROUPED if world == "grouped" else ("client-wise Dirichlet",)
    for case in cases(data, seeds):
        if case.for_choosing and case.world in names:
            try:
                yield case.world, case.groups, case.seed, federation(case)
            except PartitionError:  # some draws leave a client without samples
                continue


def measured(fed: Federation, k: int | str, seed: int, rounds: int) -> dict[str, Any]:
    """A run, and its looks."""
    measure = Measure(objectives=False, score_every=rounds)
    found = run(
        fed, methods.wecfl(k), model="mlp", rounds=rounds, plan=Plan(lr=0.03), seed=seed,
        measure=measure,
    )  # fmt: skip
    looks = {}
    for record in found.records:
        notes = record.get("notes", {})
        if isinstance(notes.get("silhouette"), list):
            looks[record["round"]] = {
                "silhouette": notes["silhouette"][int(notes["proposed"]) - 1],
                **{name: notes[name] for name in ("chance", "gain", "error")},
            }
    last, settled = found.records[-1], found.summary.get("choice", {}).get("settled")
    return {
        "k": last["clusters"], "ari": last.get("ari"), "accuracy": last["accuracy"],
        "looks": [looks[t] for t in (settled - 1, settled) if t in looks] if settled else [],
    }  # fmt: skip


def show(file: Path) -> None:
    """How many right divisions each safeguard loses, and how many others it leaves."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["k"] > 1 and "one" in row:
            print(f"{row['data']} {row['world']}, seed {row['seed']}: {row['k']} clusters "
                  f"{100 * row['accuracy']:.1f} %, one model {100 * row['one']:.1f} %")  # fmt: skip
    divided = [row for row in rows if len(row["looks"]) == 2]
    for name, safeguard in SAFEGUARDS.items():
        kept = [row for row in divided if safeguard(*row["looks"])]
        counts = []
        for chosen in (kept, divided):
            right = [r for r in chosen if r["groups"] == r["k"] and r["world"] != "affine"
                     and r["ari"] >= MIN_RIGHT_ARI]  # fmt: skip
            none = [row for row in chosen if row["groups"] == 1]
            affine = [row for row in chosen if row["world"] == "affine"]
            counts.append([len(right), len(none), len(affine)])
        right, none, affine = (f"{left} of {all}" for left, all in zip(*counts, strict=True))
        print(f"{name}: divided, right {right}, without groups {none}, affine {affine}")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["runs", "show"])
    parser.add_argument("--world", choices=WORLDS, default="grouped")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[20])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.do == "show":
        return show(chosen.out)
    key = ("world", "data", "groups", "seed")
    text = chosen.out.read_text() if chosen.out.exists() else ""
    done = {tuple(json.loads(line)[name] for name in key) for line in text.splitlines()}
    rounds = AFFINE_ROUNDS if chosen.world == "affine" else ROUNDS
    for world, groups, seed, fed in worlds(chosen.world, chosen.data, chosen.seeds):
        if (world, chosen.data, groups, seed) in done:
            continue
        found = measured(fed, "auto", seed, rounds)
        if found["k"] > 1 and chosen.world != "grouped":
            found["one"] = measured(fed, 1, seed, rounds)["accuracy"]
        row = {"world": world, "data": chosen.data, "groups": groups, "seed": seed} | found
        with chosen.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return None


if __name__ == "__main__":
    main()
