"""The measurements behind decision 15: from which start newcomers are compared, and which limit.

python benchmarks/newcomers.py limit digits --seeds 0 1 2
python benchmarks/newcomers.py start cifar-10 --seeds 0 --rounds 4 --unseen 3 --data-dir DIR
"""

from __future__ import annotations

import argparse
from math import ceil
from typing import Any

import numpy as np

from wecfl import rng
from wecfl.bilevel import evaluation
from wecfl.config import Config
from wecfl.core.engine import Engine
from wecfl.core.exchange import exchange
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.data.federation import Federation
from wecfl.engine import make_engine
from wecfl.from_config import federation_of, method_of
from wecfl.models import make
from wecfl.resolve import resolve

DRAWS = 3


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


def limits(config: Config) -> None:
    """Every group unseen in turn, the true groups as clusters: false alarms and recall."""
    federation = federation_of(config)
    here = setting(config, federation)
    points = heads(here, here.engine.starts([0], config.seed)[0])
    left, scale, _ = np.linalg.svd(points, full_matrices=False)
    points = left * scale  # the same distances in m dimensions
    groups, sizes = federation.groups, federation.sizes.astype(float)
    assert groups is not None
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    right = []
    for unseen in np.unique(groups):
        for draw in range(DRAWS):
            seen = np.flatnonzero(groups != unseen)
            generator = np.random.default_rng(draw)
            new = generator.choice(seen, round(0.2 * len(seen)), replace=False)
            members, novel = np.setdiff1d(seen, new), np.flatnonzero(groups == unseen)
            names, labels = np.unique(groups[members], return_inverse=True)
            length = np.linalg.norm(points, axis=1, keepdims=True)
            for name, g in (("distance", points), ("cosine", points / length)):
                means = centers(g[members], labels, sizes[members])
                usual, whose = own(g[members], labels, sizes[members])
                medians = np.array([np.median(usual[whose == k]) if (whose == k).any()
                                    else np.median(usual) for k in range(len(names))])  # fmt: skip
                near, off = apart(g[new], means), apart(g[novel], means)
                if name == "distance":
                    right.append((names[near.argmin(axis=1)] == groups[new]).mean())
                for kind, each in (("", np.ones(len(names))), (" over the median", medians)):
                    for level in (0.95, 0.975, 0.99):
                        most = limit(usual / each[whose], level)
                        alarm = near.min(axis=1) / each[near.argmin(axis=1)] > most
                        caught = off.min(axis=1) / each[off.argmin(axis=1)] > most
                        scores = found.setdefault((name + kind, level), [])
                        scores.append((alarm.mean(), caught.mean()))
    print(f"{config.dataset}, seed {config.seed}: {100 * np.mean(right):.1f} % in the right group")
    for (name, level), scores in found.items():
        false, recall = 100 * np.mean(scores, axis=0)
        print(f"  {name}, {100 * level:g} %: false alarms {false:.1f} %, recall {recall:.1f} %")


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
    parser.add_argument("what", choices=["limit", "start"])
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--unseen", type=int)
    parser.add_argument("--data-dir")
    said = parser.parse_args()
    preset = "default" if said.dataset == "digits" else "paper"
    for seed in said.seeds:
        flags = {"dataset": said.dataset, "seed": seed, "rounds": said.rounds, "workers": 1}
        config = resolve(preset=preset, flags=flags | {"data_dir": said.data_dir})
        if said.what == "limit":
            limits(config)
        else:
            starts(config, said.unseen)


if __name__ == "__main__":
    main()
