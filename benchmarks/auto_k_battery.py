"""The battery for `--clusters auto`: `python benchmarks/auto_k_battery.py report --out FILE`.

A *case* is a world (what differs between clients), a data set, a number of groups and a seed. Half
of the cases are for choosing a rule and the other half for reporting it: they are coloured like a
chess board (`Case.for_choosing`), which was fixed before any rule was measured.

`report` runs `wecfl` with K chosen and with K given on the half that is reported, and adds a line
to FILE for each case that is not in it yet. With `--columns representation` a look compares last
layers only. With `--served` it also runs every K from 1 to twice the number of groups. `store`
keeps, for the half by which rules were chosen, what a rule can see in the first three rounds of one
model: what a look compares, λ, and the losses on held-out samples under Ward's clusters and of each
client's own model. `rules` compares rules on that. `show` sums up FILE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import rotate
from sklearn.metrics import adjusted_rand_score

from wecfl import Federation, Measure, Plan, methods, partitions, run
from wecfl.bilevel.clustering import KMeans
from wecfl.bilevel.clustering.auto import Curve
from wecfl.bilevel.clustering.look import Look
from wecfl.bilevel.clustering.served import Served
from wecfl.bilevel.distance import squared_euclidean
from wecfl.core.components import Clusters, Distance, View
from wecfl.data.datasets import load
from wecfl.data.source import Dataset
from wecfl.errors import PartitionError

GROUPED = ("rotated", "permuted", "label skew", "n-class", "rotated, quantity skew", "mixture")
UNGROUPED = ("iid", "quantity skew", "client-wise Dirichlet", "client-wise n-class")
GROUPS = (2, 3, 4, 5, 10, 20)
DATA = ("digits", "mnist", "fashion-mnist")
SEEDS = range(5)
ROUNDS = 10
LOOKS = 3
"""The number of rounds that `store` keeps."""
MIN_RIGHT_ARI = 0.99
SAMPLES, TEST_SAMPLES = 60, 20
"""The number of samples per client of the larger data sets."""
FOREIGN_SHARE = 0.2
"""The share of a client's samples that are of another group, in a mixture."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the battery."""

    world: str
    data: str
    groups: int
    seed: int

    @property
    def for_choosing(self) -> bool:
        """Whether rules may be chosen by this case; otherwise it is reported."""
        worlds, groups = GROUPED + UNGROUPED, (1, *GROUPS).index(self.groups)
        place = worlds.index(self.world) + DATA.index(self.data) + groups + self.seed
        return place % 2 == 0

    @property
    def clients(self) -> int:
        """More clients for more groups, so that a group has at least five."""
        return 40 if self.groups <= 5 else 60 if self.groups == 10 else 100

    def __str__(self) -> str:
        words = f"{self.data} {self.world} {self.groups} {self.seed}"
        return words.replace(",", "").replace(" ", "-")


def cases(data: str, seeds: Iterable[int] = SEEDS) -> Iterator[Case]:
    """All cases of a data set."""
    for seed in seeds:
        for world in UNGROUPED:
            yield Case(world, data, 1, seed)
        for world, groups in itertools.product(GROUPED, GROUPS):
            yield Case(world, data, groups, seed)


def federation(case: Case) -> Federation:
    """The clients of a case."""
    g = case.groups
    n_class = (5, 5) if g <= 3 else (3, 3)  # two or three groups must hold all classes
    partition = {
        "quantity skew": partitions.QuantitySkew(2.0),
        "rotated, quantity skew": partitions.QuantitySkew(2.0),
        "client-wise Dirichlet": partitions.ClientwiseDirichlet(0.3),
        "client-wise n-class": partitions.ClientwiseNClass(3),
        "permuted": partitions.ClusterwisePermuted(g),
        "label skew": partitions.ClusterwiseDirichlet((0.1, 10.0), g),
        "n-class": partitions.ClusterwiseNClass(n_class, g),
    }.get(case.world, partitions.Iid())
    fed = Federation.from_dataset(some(case), partition, clients=case.clients, seed=case.seed)
    return turned(fed, case) if case.world.startswith(("rotated", "mixture")) else fed


def turned(fed: Federation, case: Case) -> Federation:
    """The images of group j are rotated by j/g of a turn."""
    g, groups = case.groups, np.arange(len(fed)) * case.groups // len(fed)
    x, draws = fed.x.copy(), np.random.default_rng([case.seed, 7])
    for i, own in enumerate(zip(fed.train, fed.test, strict=True)):
        for rows in own:
            turn = np.full(len(rows), groups[i])
            if case.world == "mixture":
                other = draws.random(len(rows)) < FOREIGN_SHARE
                turn[other] = (groups[i] + draws.integers(1, g)) % g
            for group in np.unique(turn):
                which = rows[turn == group]
                x[which] = rotate(
                    x[which], 360 * group / g, axes=(-2, -1), reshape=False, order=1,
                    mode="constant", cval=float(x.min()),
                )  # fmt: skip
    return Federation(
        x, fed.y, fed.train, fed.test, fed.classes, fed.keys, fed.names, groups.astype(np.int64)
    )


def some(case: Case) -> Dataset:
    """All digits, or 60 training and 20 test samples per client of the larger data sets."""
    whole = cached(case.data)
    if case.data == "digits":
        return whole
    draws = np.random.default_rng([case.seed, zlib.crc32(case.data.encode())])
    n = whole.n_train
    train = draws.choice(n, SAMPLES * case.clients, replace=False)
    test = n + draws.choice(len(whole.y) - n, TEST_SAMPLES * case.clients, replace=False)
    rows = np.concatenate([train, test])
    return Dataset(case.data, whole.x[rows], whole.y[rows], len(train), whole.classes)


cached = cache(load)


def result_of(case: Case, k: int | str, columns: str = "linear") -> Any:
    """A run of WeCFL."""
    method = methods.wecfl(k)
    if k == "auto":
        method = method.replace(clustering=Served(columns=columns))
    return run(
        federation(case), method, model="mlp", rounds=ROUNDS, plan=Plan(lr=0.03),
        seed=case.seed, measure=Measure(objectives=False),
    )  # fmt: skip


def measured(case: Case, served: bool, columns: str = "linear") -> dict[str, Any]:
    """What came of a case: K and ARI, the accuracy, and those with K given."""
    auto = result_of(case, "auto", columns)
    last = auto.records[-1]
    found = {
        "world": case.world, "data": case.data, "groups": case.groups, "seed": case.seed,
        "k": last["clusters"], "ari": last["ari"], "accuracy": last["accuracy"],
        "since": auto.summary["choice"]["since"], "words": auto.choice,
    }  # fmt: skip
    if case.groups > 1:
        given = result_of(case, case.groups).records
        found |= {"given": given[-1]["ari"], "given_accuracy": given[-1]["accuracy"]}
    if served:
        ks = [k for k in range(1, 2 * case.groups + 1) if k <= case.clients]
        found["by_k"] = [result_of(case, k).records[-1]["accuracy"] for k in ks]
    return found


@dataclass(frozen=True, slots=True)
class OneModel:
    """A clustering that looks, keeps what it saw, and never divides."""

    looks: list[tuple[View, Look]]

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """One cluster."""
        if view.judge:
            seen = Served().seen(view, rng)
            points = seen.points.astype(np.float64)
            self.looks.append((seen, Look.of(points, view.importance, view.judge, Served().most)))
        return Clusters(np.zeros(len(view.points), np.int64), view.centers, {}, validate=True)


def store(case: Case, folder: Path) -> None:
    """Keep what a rule can see, and what the judge knows."""
    looks: list[tuple[View, Look]] = []
    method = methods.wecfl("auto").replace(clustering=OneModel(looks))
    fed = federation(case)
    run(fed, method, model="mlp", rounds=LOOKS, plan=Plan(lr=0.03), seed=case.seed,
        measure=Measure(objectives=False, score_every=LOOKS))  # fmt: skip
    kept: dict[str, Any] = {"groups": np.zeros(len(fed)) if fed.groups is None else fed.groups}
    for t, (view, look) in enumerate(looks, 1):
        given = KMeans()(
            View(view.points, np.repeat(view.centers, case.groups, 0), view.importance,
                 view.labels), squared_euclidean, np.random.default_rng(case.seed),
        ).labels  # fmt: skip
        kept |= {f"points{t}": view.points, f"given{t}": given}
        kept |= {f"{name}{t}": getattr(look, name)
                 for name in ("labels", "silhouette", "losses", "alone", "weight")}  # fmt: skip
    np.savez_compressed(folder / f"{case}.npz", **kept)


def stored_look(kept: Any, t: int) -> Look:
    """A look that was stored."""
    return Look(*(kept[f"{n}{t}"] for n in ("labels", "silhouette", "losses", "alone", "weight")))


def largest_loss_drop(look: Look, kept: Any, t: int) -> int:
    """The fewest clusters whose loss is within a standard error of the best; local models veto."""
    best = int(look.loss.argmin())
    for k in range(best + 1):
        mean, error = look.gain(look.losses[:, best], look.losses[:, k])
        if mean <= error:
            break
    return k + 1 if look.gain(look.losses[:, k], look.alone)[0] > 0 else 1


def old_peak(look: Look, kept: Any, t: int) -> int:
    """The K of silhouette and BIC without the threshold, accepted by two standard errors."""
    curve = Curve.of(kept[f"points{t}"].astype(np.float64), look.weight)
    scores = np.nan_to_num(curve.silhouette, nan=-1.0)
    good = np.flatnonzero(scores >= scores.max() - 0.02)
    k = min(int(good[curve.bic[good].argmax()]) + 1, len(look.labels))
    mean, error = look.gain(look.losses[:, k - 1], look.losses[:, 0])
    return k if mean > 2 * error else 1


RULES: dict[str, Callable[[Look, Any, int], int]] = {
    "silhouette × gain, one standard error, better than one model and than none": (
        lambda look, kept, t: look.best
    ),
    "silhouette × gain alone": lambda look, kept, t: look.clearest,
    "the same, without the comparison with local models": lambda look, kept, t: look.proposed,
    "least loss, one standard error, better than none": largest_loss_drop,
    "silhouette and BIC, accepted by two standard errors": old_peak,
    "silhouette and BIC, clear from 0.5 on": lambda look, kept, t: Curve.of(
        kept[f"points{t}"].astype(np.float64), look.weight
    ).best("both"),
}


def compare(folder: Path, data: str, seeds: Iterable[int]) -> None:
    """How often each rule is right in each of the first rounds, on the half for choosing."""
    for name, rule in RULES.items():
        for t in range(1, LOOKS + 1):
            right, of, one, none = 0, 0, 0, 0
            for case in cases(data, seeds):
                file = folder / f"{case}.npz"
                if not case.for_choosing or not file.exists():
                    continue
                with np.load(file) as kept:
                    look, groups, given = stored_look(kept, t), kept["groups"], kept[f"given{t}"]
                    k = rule(look, kept, t)
                if case.groups == 1:
                    one, none = one + (k == 1), none + 1
                elif adjusted_rand_score(groups, given) >= MIN_RIGHT_ARI:
                    right, of = right + (k == case.groups), of + 1
            print(f"{data}, round {t}: K right {right} of {of}, one {one} of {none}: {name}")


def show(file: Path) -> None:
    """The shares of right runs by world, and how much accuracy was lost."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for data, world in itertools.product(DATA, GROUPED + UNGROUPED):
        rows = [row for row in lines if (row["data"], row["world"]) == (data, world)]
        if not rows:
            continue
        if world in UNGROUPED:
            print(f"{data:14} {world:24} K = 1: {sum(r['k'] == 1 for r in rows)} of {len(rows)}")
            continue
        able = [row for row in rows if row["given"] >= MIN_RIGHT_ARI]
        right = [row for row in able if row["k"] == row["groups"] and row["ari"] >= MIN_RIGHT_ARI]
        wrong = [(row["groups"], row["seed"], row["k"], round(row["ari"], 2))
                 for row in able if row not in right]  # fmt: skip
        print(f"{data:14} {world:24} right: {len(right)} of {len(able)} (of {len(rows)} runs)",
              wrong or "")  # fmt: skip
    for data, grouped in itertools.product(DATA, (True, False)):
        served = [row for row in lines if row["data"] == data and "by_k" in row]
        if rows := [row for row in served if (row["groups"] > 1) == grouped]:
            behind_the_best(data, "with groups" if grouped else "without groups", rows)


def behind_the_best(data: str, worlds: str, rows: list[dict[str, Any]]) -> None:
    """How many runs serve within a point of the best K, with K chosen and with the true K."""
    best = np.array([max(row["by_k"]) for row in rows])
    chosen = [row["accuracy"] for row in rows]
    for what, had in (("auto", chosen), ("true", [row["by_k"][row["groups"] - 1] for row in rows])):
        lost = 100 * (best - had)
        close = np.count_nonzero(lost < 1 + 1e-9)
        mean, most = lost.mean(), lost.max()
        print(f"{data:14} {worlds}, K {what}: within a point of the best K {close} of {len(rows)}, "
              f"mean {mean:.1f}, worst {most:.1f}")  # fmt: skip


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["report", "store", "rules", "show"])
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--out", type=Path, required=True, help="a file, or a folder for store")
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--columns", default="linear", help="compared in a look (`Served.columns`)")
    parser.add_argument("--most-groups", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS])
    chosen = parser.parse_args()
    if chosen.do == "rules":
        return compare(chosen.out, chosen.data, chosen.seeds)
    if chosen.do == "show":
        return show(chosen.out)
    if chosen.do == "store":
        chosen.out.mkdir(parents=True, exist_ok=True)
        for case in cases(chosen.data, chosen.seeds):
            if case.for_choosing and not (chosen.out / f"{case}.npz").exists():
                with suppress(PartitionError):
                    store(case, chosen.out)
        return None
    key = ("world", "data", "groups", "seed")
    text = chosen.out.read_text() if chosen.out.exists() else ""
    done = {tuple(json.loads(line)[name] for name in key) for line in text.splitlines()}
    for case in cases(chosen.data, chosen.seeds):
        new = (case.world, case.data, case.groups, case.seed) not in done
        if new and not case.for_choosing and case.groups <= chosen.most_groups:
            try:
                found = measured(case, chosen.served, chosen.columns)
            except PartitionError as error:  # some draws leave a client without samples
                print(f"{case}: {error}")
                continue
            with chosen.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
    return None


if __name__ == "__main__":
    main()
