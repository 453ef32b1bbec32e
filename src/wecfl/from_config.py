"""Makes the clients and the options of an experiment from a configuration."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.channel.privacy import Privacy
from wecfl.config import Config
from wecfl.config.keys import PARTITION_KEYS, WORLD_KEYS, is_own
from wecfl.core.method import Method
from wecfl.core.schedule import CosineDecay, Schedule, StepDecay, Warmup
from wecfl.core.until import NoGain, Settled
from wecfl.data import drift, transforms
from wecfl.data import partition as partitions
from wecfl.data.datasets import SOURCES, load, load_table
from wecfl.data.downloads import DownloadProgress
from wecfl.data.federation import Federation
from wecfl.data.protocols import commonly_tested, limited, merged, repeated, tested_by_class
from wecfl.data.source import TABLE_ENDINGS, Dataset
from wecfl.data.tables import TABLES
from wecfl.data.targets import count_targets
from wecfl.errors import ConfigError
from wecfl.method_from_config import method_of
from wecfl.options import Attack, Compute, Conditions, Measure, Newcomers, Plan, Rounds
from wecfl.tasks import Binary, Classification, parsed
from wecfl.tasks.choice import asked_for

__all__ = [
    "DATA_KEYS",
    "INCIDENTAL_KEYS",
    "federation_of",
    "holds_clients",
    "idle_keys",
    "is_table",
    "load_pool",
    "options_of",
    "written",
]


DATA_KEYS = {
    *PARTITION_KEYS, *WORLD_KEYS, "dataset", "data_dir", "holdout", "validation", "seed",
    "test_order",
    "client_column", "target", "features", "scale", "scale_by", "impute", "samples", "registered",
}  # fmt: skip
"""The choices that decide which clients there are and what they hold."""

INCIDENTAL_KEYS = (
    "seed", "ray_address", "workers", "data_dir", "objectives", "objectives_every", "diagnostics",
    "trace", "score_every", "checkpoint_every", "memory",
)  # fmt: skip
"""Choices that do not make it another experiment."""


def federation_of(config: Config, pool: Dataset | None = None) -> Federation:
    """The clients of a configuration; from `pool`, if its data set is already loaded."""
    config = config.completed()
    federation = _all_data(config, pool)
    if config.transform:
        changes = map(transforms.parsed, config.transform)
        federation = federation.transformed(*changes, groups=config.groups, seed=config.seed)
    if config.mixture:
        federation = federation.mixed(config.mixture, config.seed)
    if config.test_set == "common":
        federation = commonly_tested(federation)
    if config.test_order == "class":
        federation = tested_by_class(federation)
    if config.samples and config.registered is None:  # registered clients draw so many
        federation = limited(federation, config.samples, config.seed)
    if config.validation:
        federation = federation.validating(config.validation, config.seed)
    if config.drift:
        federation = federation.drifting(drift.parsed(config.drift), config.seed)
    return federation


def _all_data(config: Config, pool: Dataset | None) -> Federation:
    if is_table(config.dataset):
        return _of_table(config)
    made = _of_arrays(config, pool)
    scale = "none" if config.scale == "auto" else config.scale
    if scale == "none" and config.scale_by == "all":
        return made
    return made.scaled(scale, config.scale_by)


TABLE_KEYS = ("target", "client_column", "features", "impute")
"""The choices that are only for tables."""


def _of_table(config: Config) -> Federation:
    from wecfl.data.frames import read_frame  # noqa: PLC0415  (only where there is a table)

    source = TABLES.get(config.dataset)
    client, target = (config.client_column, config.target)
    if source:
        client, target = client or source.client, target or (source.target,)
    if client is None or target is None:
        raise ConfigError(
            f"{config.dataset} is a table: say which column names the client of a row "
            "(client_column), and which column is to be predicted (target)"
        )
    if config.scale == "pixels":
        raise ConfigError(
            f"scale pixels is for images, and {config.dataset} is a table: set scale to standard, "
            "minmax or none"
        )
    usual = None
    if source and target == (source.target,):
        usual = tuple(name for name in source.features or () if name != client) or None
    place = Path(config.data_dir) if config.data_dir else None
    return Federation.from_frame(
        load_table(source.name, place) if source else read_frame(Path(config.dataset)),
        client=client, target=target, features=config.features or usual,
        scale="standard" if config.scale == "auto" else config.scale, scale_by=config.scale_by,
        impute=config.impute, test=config.holdout, seed=config.seed,
    )  # fmt: skip


def _of_arrays(config: Config, pool: Dataset | None) -> Federation:
    if given := [key for key in TABLE_KEYS if getattr(config, key) is not None]:
        raise ConfigError(
            f"{given[0]} is for tables (.csv or .parquet), and {config.dataset} is not a table: "
            f"leave out {given[0]}"
        )
    if holds_clients(config):
        return Federation.from_folder(config.dataset, test=config.holdout, seed=config.seed)
    partition = partitions.build(
        config.partition,
        alpha=config.alpha or (),
        n=config.classes_per or (),
        groups=config.groups,
    )
    data = _for_task(pool or load_pool(config), config.task)
    data = repeated(data, config.copies) if config.copies > 1 else data
    apart = config.test_set != "merged"
    made = Federation.from_dataset(
        data if apart else merged(data), partition, clients=config.clients, seed=config.seed
    )
    return made if apart or not config.holdout else made.validating(config.holdout, config.seed)


def _for_task(data: Dataset, text: str) -> Dataset:
    """The data set with labels if the task has classes, otherwise with numbers, which are never
    divided by class.
    """
    task, _ = asked_for(text, data.y)
    whole = data.y.astype(np.int64)
    if not isinstance(task, Classification | Binary):
        numbers = data.y.astype(np.float32)
        return replace(data, y=numbers, classes=count_targets(numbers))
    if data.y.ndim == 1 and data.y.dtype.kind == "f" and (whole == data.y).all():
        return replace(data, y=whole, classes=count_targets(whole))
    return data


def load_pool(config: Config, progress: DownloadProgress | None = None) -> Dataset:
    """The data set of a configuration, before it is divided among clients."""
    place = Path(config.data_dir) if config.data_dir else None
    return load(config.dataset, place, progress=progress, test=config.holdout, seed=config.seed)


def holds_clients(config: Config) -> bool:
    """Whether the data set is a folder, a table or a fleet of clients, which needs no partition."""
    name = config.dataset
    clients = is_table(name) or is_own(name) or Path(name).is_dir()
    return bool(name) and name not in SOURCES and clients


def is_table(name: str) -> bool:
    """Whether a data set is a table: one that is known by name, or a file.

    >>> is_table("people.csv"), is_table("vowel"), is_table("people.npz")
    (True, True, False)
    """
    return name in TABLES or Path(name).suffix in TABLE_ENDINGS


def idle_keys(config: Config) -> tuple[str, ...]:
    """The choices about a partition that have no effect, since the data set has its own clients.

    >>> idle_keys(Config(dataset="digits"))
    ()
    """
    if not holds_clients(config):
        return ()
    return tuple(key for key in PARTITION_KEYS if key != "groups" or not config.transform)


PLAN_KEYS = {
    "steps", "batch", "lr", "momentum", "keep_momentum", "weight_decay", "optimizer",
    "adam_beta2", "adam_eps", "max_gradient", "epochs",
}  # fmt: skip
"""The keys of the plan, for which a method may have defaults of its own."""


def options_of(config: Config) -> dict[str, Any]:
    """The method and the options of a configuration, by the parameter names of `wecfl.run`.

    >>> options_of(Config(lr=0.1, participation=0.5))["plan"]
    Plan(steps=None, batch=None, lr=0.1, momentum=None, keep_momentum=None, weight_decay=None,
         optimizer=None, adam_beta2=None, adam_eps=None, max_gradient=None, epochs=None,
         schedule=None)
    """
    privacy = None
    if config.clip is not None:
        delta = {} if config.delta is None else {"delta": config.delta}
        privacy = Privacy(config.clip, config.noise or 0.0, **delta)
    newcomers = None
    if config.newcomers is not None or config.unseen is not None:
        newcomers = Newcomers(config.newcomers, config.unseen)
    return {
        "method": method_of(config),
        "model": config.model,
        "task": config.task if config.task == "auto" else parsed(config.task),
        "rounds": _rounds(config),
        "plan": Plan(
            **config.model_dump(include=PLAN_KEYS & config.model_fields_set),
            schedule=_schedule(config),
        ),
        "seed": config.seed,
        "conditions": _conditions(config),
        "privacy": privacy,
        "newcomers": newcomers,
        "measure": Measure(
            config.objectives,
            config.objectives_every,
            config.diagnostics,
            config.trace,
            config.score_every,
            config.batchnorm,
        ),
        "engine": Compute(
            config.engine, config.workers, config.device, config.precision, config.ray_address
        ),
    }


def _rounds(config: Config) -> Rounds:
    """The rounds of a configuration, and when they end.

    >>> _rounds(Config(rounds=100, until="settled", patience=3))
    Rounds(count=100, until=Settled(rounds=3, tolerance=0.01))
    """
    names = {"patience": "rounds", "tolerance": "tolerance"}
    if config.until == "score":
        names["tolerance"] = "gain"
    given = {names[key]: getattr(config, key) for key in names if getattr(config, key) is not None}
    if config.until == "settled":
        return Rounds(config.rounds, Settled(**given))
    if config.until == "score":
        return Rounds(config.rounds, NoGain(**given))
    if given:
        raise ConfigError(
            "patience and tolerance say when a run ends early: set until to settled or score, or "
            "leave them out"
        )
    return Rounds(config.rounds)


def _schedule(config: Config) -> Schedule | None:
    """The schedule of a configuration.

    >>> _schedule(Config(schedule="cosine", rounds=30, warmup=5))
    Warmup(rounds=5, then=CosineDecay(rounds=25, floor=0.0))
    """
    config = config.completed()
    if config.warmup >= config.rounds:
        raise ConfigError(
            f"warmup must be shorter than the run, got {config.warmup} of {config.rounds} rounds: "
            f"lower it"
        )
    if config.schedule == "constant":
        for key in ("decay_rounds", "decay"):
            if getattr(config, key) is not None:
                raise ConfigError(
                    f"{key} is for schedule step or cosine, got constant: set schedule, or leave "
                    f"out {key}"
                )
        return Warmup(config.warmup) if config.warmup else None
    if config.decay_rounds is None:
        raise ConfigError("schedule step needs decay_rounds: say after how many rounds η falls")
    left = () if config.decay is None else (config.decay,)
    kind = StepDecay if config.schedule == "step" else CosineDecay
    falling = kind(config.decay_rounds, *left)
    return Warmup(config.warmup, falling) if config.warmup else falling


def _conditions(config: Config) -> Conditions:
    attack = None
    if config.attack is not None:
        share = {} if config.attackers is None else {"attackers": config.attackers}
        attack = Attack(config.attack, strength=config.attack_strength, **share)
    shorten_above = inf if config.shorten_above == "never" else config.shorten_above
    return Conditions(
        config.participation, config.dropout, config.stragglers, config.refuse_above,
        shorten_above, config.min_cluster, attack, config.joining, config.joining_round,
    )  # fmt: skip


def written(config: Config, method: Method) -> dict[str, Any]:
    """The content of `config.toml`: the choices that had an effect, which can repeat the run."""
    config = config.completed()
    idle = (*idle_keys(config), *(["steps"] * bool(config.epochs)))
    usual = {key: value for key, value in method.plan.items() if key not in config.model_fields_set}
    chosen = {key: value for key, value in config.toml().items() if key not in idle}
    return chosen | usual
