"""The measurements behind decisions 15 and 39: how newcomers are compared, and what is novel.

python benchmarks/newcomers.py sizes digits --seeds 0 1 2 3 4
python benchmarks/newcomers.py sizes mnist-rotated --seeds 0 1 --unseen 0 1
python benchmarks/newcomers.py labels digits --seeds 0 1 2 3 4 --unseen 0 3 6 9
python benchmarks/newcomers.py start cifar-10 --seeds 0 --rounds 4 --unseen 3 --data-dir DIR
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from wecfl import rng
from wecfl.bilevel import evaluation
from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.core.engine import Engine
from wecfl.core.exchange import exchange
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.data.federation import Federation
from wecfl.engine import make_engine
from wecfl.errors import ConfigError
from wecfl.experiment import Experiment
from wecfl.from_config import federation_of
from wecfl.method_from_config import method_of
from wecfl.models import make

SIZES = (10, 30, 100, 300)
"""The numbers of samples of newcomers."""

FALSE_ALARMS = 0.04
"""The stated rate of false alarms."""

ROTATED: dict[str, Any] = {"partition": "iid", "transform": ["rotation"], "groups": 4}
IMAGES: dict[str, Any] = {"clients": 60, "rounds": 6, "model": "mlp", "lr": 0.01}
WORLDS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "digits-rotated": {"dataset": "digits", **ROTATED},
    "digits-permuted": {"dataset": "digits", "partition": "clusterwise-permuted", "groups": 4},
    "mnist": {"dataset": "mnist", **IMAGES},
    "mnist-rotated": {"dataset": "mnist", **IMAGES, **ROTATED},
    "fashion-mnist": {"dataset": "fashion-mnist", **IMAGES},
}
"""Cluster-wise Dirichlet (0.1, 10) where nothing else is said."""


def setting(config: Config, federation: Federation) -> Setting:
    """These clients, trained as a configuration says."""
    module = make(
        config.model, shape=federation.shape, classes=federation.classes, seed=config.seed
    )
    options = config.model_dump(include={"workers", "batchnorm", "batch"})
    engine = make_engine(config.engine, federation, module, **options)
    assert isinstance(config.lr, float)
    plan = LocalPlan(
        config.steps, config.batch, config.lr, config.momentum, config.keep_momentum,
        config.weight_decay,
    )  # fmt: skip
    return Setting(method_of(config), engine, plan, config.seed)


def heads(here: Setting, start: Any) -> Any:
    """(m, p), what is clustered after one local update from `start`, without it."""
    m, engine = len(here.engine.sizes), here.engine
    sent = State(0, None, start[None], np.zeros(m, np.int64))
    columns = engine.layout.columns("head")
    return exchange(sent, here).models[:, columns].astype(float) - start[columns]


def centers(points: Any, labels: Any, sizes: Any) -> Any:
    """The mean of each cluster, weighted by data sizes."""
    return np.stack(
        [np.average(points[labels == k], axis=0, weights=sizes[labels == k])
         for k in range(labels.max() + 1)]
    )  # fmt: skip


def apart(points: Any, means: Any) -> Any:
    """(m, K), distances."""
    return np.sqrt(np.stack([((points - mean) ** 2).sum(axis=1) for mean in means], axis=1))


def own(points: Any, labels: Any, sizes: Any) -> tuple[Any, Any]:
    """Each member's distance from the mean of the others, and its cluster; none of those alone."""
    far = apart(points, centers(points, labels, sizes))[np.arange(len(labels)), labels]
    total, several = np.bincount(labels, sizes)[labels], np.bincount(labels)[labels] > 1
    return (far[several] * (total / np.maximum(total - sizes, 1))[several]), labels[several]


def limit(calibrated: Any, level: float) -> float:
    """The conformal quantile."""
    place = min(ceil(level * (len(calibrated) + 1)), len(calibrated)) - 1
    return float(np.sort(calibrated)[place])


def with_samples(newcomers: Federation, size: int) -> Federation:
    """Those newcomers that have as many samples, with so many of them."""
    enough = newcomers.subset(np.flatnonzero(newcomers.sizes >= size))
    drawn = [
        rng.stream(0, "fewer samples", size, int(key)).choice(rows, size, replace=False)
        for rows, key in zip(enough.train, enough.keys, strict=True)
    ]
    return replace(enough, train=tuple(drawn))


def sizes(config: Config) -> list[tuple[int, bool, bool, bool | None]]:
    """Each newcomer with so many samples: whether unseen, found novel, by inputs right."""
    experiment = Experiment.prepared(config)(federation_of(config))
    members, late = experiment.members, experiment.kept_out
    assert late is not None and late.groups is not None and isinstance(members, Federation)
    result = replace(experiment, federation=members, newcomers=None).run()
    assert members.groups is not None
    main = {k: np.bincount(members.groups[result.labels == k]).argmax() for k in {*result.labels}}
    found: list[tuple[int, bool, bool, bool | None]] = []
    for size in (0, *SIZES):
        if size > late.sizes.max():
            continue
        shown = with_samples(late, size) if size else late
        assert shown.groups is not None
        for i, each in enumerate(result.assigner.receive(shown)):
            x = shown.x[shown.train[i]]
            try:
                told = bool(main[result.assign(x).cluster] == shown.groups[i])
            except ConfigError:
                told = None
            found.append((size, bool(shown.groups[i] == config.unseen), each.novel, told))
    return found


def apart_in_labels(config: Config) -> float:
    """How far the labels of the unseen group are from those of the group that is most like it.

    It is the total variation: the share of its samples that would need another label.
    """
    federation, groups, unseen = federation_of(config), config.groups, config.unseen
    assert federation.groups is not None and unseen is not None
    counts = np.zeros((groups, federation.classes))
    for group, *parts in zip(federation.groups, federation.train, federation.test, strict=True):
        labels = federation.y[np.concatenate(parts)]
        counts[group] += np.bincount(labels, minlength=federation.classes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    far = np.abs(shares - shares[unseen]).sum(axis=1) / 2
    return float(np.delete(far, unseen).min())


def by_labels(config: Config, size: int) -> tuple[int, float, float]:
    """How many clients of the unseen group a rule would find that knew the labels of all groups.

    It compares how likely `size` labels of a client are in the unseen group and in the others. It
    raises as many false alarms as are stated among all other clients, or at most as many in each
    group. It gives the number of unseen clients, and the shares that are found in either way.
    """
    federation, unseen = federation_of(config), config.unseen
    assert federation.groups is not None and unseen is not None
    counts = np.full((config.groups, federation.classes), 0.5)
    for group, *parts in zip(federation.groups, federation.train, federation.test, strict=True):
        labels = federation.y[np.concatenate(parts)]
        counts[group] += np.bincount(labels, minlength=federation.classes)
    logs, draws = np.log(counts / counts.sum(axis=1, keepdims=True)), np.random.default_rng(0)
    scores: list[tuple[int, Any]] = []
    for group, rows in zip(federation.groups, federation.train, strict=True):
        if len(rows) >= size:
            drawn = [federation.y[draws.choice(rows, size, replace=False)] for _ in range(100)]
            likely = np.stack([logs[:, labels].sum(axis=1) for labels in drawn])
            others = np.logaddexp.reduce(np.delete(likely, unseen, axis=1), axis=1)
            scores.append((int(group), likely[:, unseen] - others))
    seen = {group for group, _ in scores} - {unseen}
    of_each = [np.concatenate([s for g, s in scores if g == group]) for group in seen]
    limits = (np.quantile(np.concatenate(of_each), 1 - FALSE_ALARMS),
              max(np.quantile(each, 1 - FALSE_ALARMS) for each in of_each))  # fmt: skip
    new = np.stack([s for g, s in scores if g == unseen])
    overall, in_each = (float((new > limit).mean()) for limit in limits)
    return len(new), overall, in_each


def labels(world: str, seeds: list[int], unseen: list[int]) -> None:
    """What a rule could find at best, over seeds and unseen groups."""
    found = []
    for seed, group in itertools.product(seeds, unseen):
        flags = {"seed": seed, "unseen": group, "newcomers": 0.2}
        found.append(by_labels(resolve(preset="default", flags=WORLDS[world] | flags), SIZES[0]))
    table = np.array(found)
    overall, in_each = table[:, 0] @ table[:, 1:] / table[:, 0].sum()
    print(f"{world}, {SIZES[0]} samples, {table[:, 0].sum():.0f} clients of unseen groups: a rule "
          f"that knew the labels of all groups would find {100 * overall:.1f} %, and "
          f"{100 * in_each:.1f} % with the same limit in each group")  # fmt: skip


def novelty(world: str, seeds: list[int], unseen: list[int] | None, data_dir: str | None) -> None:
    """False alarms and recall by the number of samples, over seeds and unseen groups."""
    found = []
    for seed in seeds:
        groups = WORLDS[world].get("groups", 10)
        for group in range(groups) if unseen is None else unseen:
            flags = {
                "seed": seed, "unseen": group, "newcomers": 0.2, "clusters": groups - 1,
                "workers": 1, "objectives": False, "data_dir": data_dir,
            }  # fmt: skip
            config = resolve(preset="default", flags=WORLDS[world] | flags)
            here = sizes(config)
            found += here
            if "partition" not in WORLDS[world]:
                new = [[novel for size, unseen, novel, _ in here if unseen and size == n]
                       for n in (0, SIZES[0])]  # fmt: skip
                print(f"  seed {seed}, group {group}: {100 * apart_in_labels(config):.0f} % of the "
                      f"labels are others; found with all samples {sum(new[0])} of {len(new[0])}, "
                      f"with {SIZES[0]} {sum(new[1])} of {len(new[1])}")  # fmt: skip
    table = np.array([[a, b, c, np.nan if d is None else d] for a, b, c, d in found], float)
    print(f"{world}, seeds {seeds}, {len(table)} newcomers")
    for size in (0, *SIZES):
        here = table[table[:, 0] == size]
        if not len(here):
            continue
        seen, new = here[here[:, 1] == 0], here[here[:, 1] == 1]
        told = seen[~np.isnan(seen[:, 3])]
        right = f"{100 * told[:, 3].mean():.1f} % right" if len(told) else "refused"
        print(f"  {size or 'all'} samples: false alarms {100 * seen[:, 2].mean():.1f} % of "
              f"{len(seen)}, recall {100 * new[:, 2].mean():.1f} % of {len(new)}; without labels "
              f"{len(told)} of {len(seen)} answered, {right}")  # fmt: skip


def starts(config: Config, unseen: int | None) -> None:
    """After some rounds: newcomers from the run's start, and from the mean of its centers."""
    federation = federation_of(config)
    groups = federation.groups
    assert groups is not None
    draws = [rng.stream(config.seed, "newcomers", 0, int(key)).random() for key in federation.keys]
    late = np.zeros(len(federation), bool)
    late[np.argsort(draws)[: round(0.2 * len(federation))]] = True
    late |= groups == unseen
    config = config.model_copy(update={"clusters": 10 - (unseen is not None)})
    here, there = (setting(config, federation.subset(np.flatnonzero(who))) for who in (~late, late))
    path = iterate(here, opening(here))
    for _ in range(config.rounds):
        state = next(path)
    sizes, labels = here.engine.sizes.astype(float), state.labels
    weights = np.bincount(labels, sizes, len(state.centers))
    mean = (weights / weights.sum() @ state.centers).astype(np.float32)
    names = [
        np.bincount(groups[~late][labels == k], minlength=1).argmax()
        for k in range(labels.max() + 1)
    ]
    seen = groups[late] != unseen

    def told(name: str, far: Any, most: float) -> None:
        right = np.array(names)[far.argmin(axis=1)] == groups[late]
        novel = far.min(axis=1) > most
        print(f"  {name}: {right[seen].sum()} of {seen.sum()} right, {novel[seen].sum()} of them "
              f"novel; unseen: {novel[~seen].sum()} of {(~seen).sum()} novel")  # fmt: skip

    print(f"{config.dataset}, seed {config.seed}, {config.rounds} rounds, unseen {unseen}")
    common: Engine = here.engine
    for name, start in (("start", common.starts([0], config.seed)[0]), ("mean", mean)):
        points = heads(here, start)
        far = apart(heads(there, start), centers(points, labels, sizes))
        told(name, far, limit(own(points, labels, sizes)[0], 0.975))
    told("losses", evaluation.losses(there.engine, state.centers),
         limit(evaluation.risk(common, state.own_centers, "test"), 0.975))  # fmt: skip


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["sizes", "labels", "start"])
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--unseen", type=int, nargs="+")
    parser.add_argument("--data-dir")
    said = parser.parse_args()
    if said.what == "sizes":
        novelty(said.dataset, said.seeds, said.unseen, said.data_dir)
        return
    if said.what == "labels":
        labels(said.dataset, said.seeds, said.unseen or [0])
        return
    preset = "default" if said.dataset == "digits" else "paper"
    for seed in said.seeds:
        flags = {"dataset": said.dataset, "seed": seed, "rounds": said.rounds, "workers": 1}
        config = resolve(preset=preset, flags=flags | {"data_dir": said.data_dir})
        starts(config, said.unseen and said.unseen[0])


if __name__ == "__main__":
    main()
