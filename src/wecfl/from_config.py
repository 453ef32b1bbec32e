"""Makes the parts of an experiment from a configuration: its clients, method and options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from wecfl.bilevel.aggregation import Stay, robust
from wecfl.bilevel.importance import Batches, data_size, uniform
from wecfl.bilevel.optimizer import Adaptive, Momentum
from wecfl.bilevel.representation import Columns
from wecfl.channel.privacy import Privacy
from wecfl.config import METHOD_OPTIONS, PARTITION_KEYS, Config
from wecfl.core.components import Aggregation
from wecfl.core.method import Method
from wecfl.data import partition as partitions
from wecfl.data.datasets import SOURCES, load
from wecfl.data.downloads import DownloadProgress
from wecfl.data.federation import Federation
from wecfl.data.source import TABLE_ENDINGS, Dataset
from wecfl.errors import ConfigError
from wecfl.methods import named, options
from wecfl.options import Attack, Compute, Conditions, Measure, Newcomers, Plan

__all__ = [
    "federation_of",
    "holds_clients",
    "is_table",
    "load_pool",
    "method_of",
    "options_of",
    "written",
]


def federation_of(config: Config, pool: Dataset | None = None) -> Federation:
    """The clients of a configuration; from `pool`, if its data set is already loaded."""
    config = config.completed()
    federation = _all_data(config, pool)
    return (
        federation.validating(config.validation, config.seed) if config.validation else federation
    )


def _all_data(config: Config, pool: Dataset | None) -> Federation:
    if is_table(config.dataset):
        return _of_table(config)
    made = _of_arrays(config, pool)
    scale = "none" if config.scale == "auto" else config.scale
    return made if scale == "none" else made.scaled(scale, config.scale_by)


def _of_table(config: Config) -> Federation:
    from wecfl.data.frames import read_frame  # noqa: PLC0415  (only where there is a table)

    if config.client_column is None or config.target is None:
        raise ConfigError(
            f"{config.dataset} is a table: say which column holds the clients (client_column) and "
            "which is to be predicted (target)"
        )
    if config.scale == "pixels":
        raise ConfigError("scale pixels is for images: a table has standard, minmax or none")
    return Federation.from_frame(
        read_frame(Path(config.dataset)),
        client=config.client_column, target=config.target, features=config.features,
        scale="standard" if config.scale == "auto" else config.scale, scale_by=config.scale_by,
        impute=config.impute, test=config.holdout, seed=config.seed,
    )  # fmt: skip


def _of_arrays(config: Config, pool: Dataset | None) -> Federation:
    if config.target is not None:
        raise ConfigError(
            f"target and client_column name columns of a table, a .csv or .parquet file: "
            f"{config.dataset} is none"
        )
    if holds_clients(config):
        return Federation.from_folder(config.dataset, test=config.holdout, seed=config.seed)
    partition = partitions.build(
        config.partition,
        alpha=config.alpha or (),
        n=config.classes_per or (),
        groups=config.groups,
    )
    data = pool or load_pool(config)
    return Federation.from_dataset(data, partition, clients=config.clients, seed=config.seed)


def load_pool(config: Config, progress: DownloadProgress | None = None) -> Dataset:
    """The data set of a configuration, before it is divided among clients."""
    place = Path(config.data_dir) if config.data_dir else None
    return load(config.dataset, place, progress=progress, test=config.holdout, seed=config.seed)


def holds_clients(config: Config) -> bool:
    """Whether the data set is a folder or a table of clients, which needs no partition."""
    name = config.dataset
    return bool(name) and name not in SOURCES and (is_table(name) or Path(name).is_dir())


def is_table(name: str) -> bool:
    """Whether the name of a data set is that of a file with a table.

    >>> is_table("people.csv"), is_table("people.npz")
    (True, False)
    """
    return Path(name).suffix in TABLE_ENDINGS


def method_of(config: Config) -> Method:
    """The method of a configuration, with the choices that apply to it.

    >>> method_of(Config(method="ifca", clusters=3, loss_batches=3)).representation
    Losses(batches=3)
    """
    has = options(config.method)
    fitting = {
        option: getattr(config, key) for key, option in METHOD_OPTIONS.items() if option in has
    }
    method = named(config.method, **{**fitting, **dict(config.options)})
    if isinstance(method.representation, Columns) and method.shared == "all":
        method = method.replace(representation=Columns(config.representation))
    if config.aggregation != "mean":
        method = method.replace(aggregation=_robust(config, method.aggregation))
    if config.importance != "method":
        chosen = {"data-size": data_size, "uniform": uniform, "batches": Batches(config.batch)}
        method = method.replace(importance=chosen[config.importance])
    return method


def _robust(config: Config, usual: Aggregation) -> Aggregation:
    """The aggregation of a configuration, with the method's importance of clients.

    A server optimizer steps towards its result instead of the mean.
    """
    if isinstance(usual, Stay):
        raise ConfigError(f"{config.method} does not aggregate models: leave out aggregation")
    if isinstance(usual, Momentum | Adaptive):
        return replace(usual, of=_robust(config, usual.of))
    known = {"trimmed-mean": "share", "krum": "attackers", "multi-krum": "attackers"}
    if config.tolerated is None:
        return robust(config.aggregation, usual)
    if config.aggregation not in known:
        raise ConfigError(
            f"{config.aggregation} has no share of tolerated attackers: leave out tolerated"
        )
    return robust(config.aggregation, usual, **{known[config.aggregation]: config.tolerated})


PLAN_KEYS = {"steps", "batch", "lr", "momentum", "keep_momentum", "weight_decay"}
"""The keys of the plan, for which a method may have defaults of its own."""


def options_of(config: Config) -> dict[str, Any]:
    """The method and the options of a configuration, by the parameter names of `wecfl.run`.

    >>> options_of(Config(lr=0.1, participation=0.5))["plan"]
    Plan(steps=None, batch=None, lr=0.1, momentum=None, keep_momentum=None, weight_decay=None)
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
        "rounds": config.rounds,
        "plan": Plan(**config.model_dump(include=PLAN_KEYS & config.model_fields_set)),
        "seed": config.seed,
        "conditions": _conditions(config),
        "privacy": privacy,
        "newcomers": newcomers,
        "measure": Measure(
            config.objectives,
            config.diagnostics,
            config.trace,
            config.score_every,
            config.batchnorm,
        ),
        "engine": Compute(config.engine, config.workers, config.ray_address),
    }


def _conditions(config: Config) -> Conditions:
    attack = None
    if config.attack is not None:
        share = {} if config.attackers is None else {"attackers": config.attackers}
        attack = Attack(config.attack, strength=config.attack_strength, **share)
    return Conditions(
        config.participation, config.dropout, config.stragglers, config.refuse_above,
        config.min_cluster, attack,
    )  # fmt: skip


def written(config: Config, method: Method) -> dict[str, Any]:
    """The content of `config.toml`: the choices that applied, which can repeat the run."""
    config = config.completed()
    idle = PARTITION_KEYS if holds_clients(config) else ()
    usual = {key: value for key, value in method.plan.items() if key not in config.model_fields_set}
    chosen = {key: value for key, value in config.toml().items() if key not in idle}
    return chosen | usual
