"""From a configuration to the clients, the method and the run it describes."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.bilevel.aggregation import robust
from wecfl.bilevel.auto import Auto
from wecfl.bilevel.clustering import KMeans
from wecfl.bilevel.hierarchy import Agglomerative, Bipartition
from wecfl.bilevel.importance import Batches, data_size, uniform
from wecfl.bilevel.rate import check_theory
from wecfl.bilevel.representation import Columns, Losses
from wecfl.channel.privacy import Privacy, check_private
from wecfl.config import PARTITIONING, Config, resolve
from wecfl.core.method import Aggregation, Clustering, Method
from wecfl.core.plan import Plan
from wecfl.core.rounds import Observer
from wecfl.data import partition as partitions
from wecfl.data.datasets import KNOWN, Dataset, load
from wecfl.data.federation import Federation
from wecfl.data.fetch import Progress as FetchProgress
from wecfl.engine import local
from wecfl.engine.ray import Progress
from wecfl.errors import ConfigError
from wecfl.experiment import run
from wecfl.folder.models import Models
from wecfl.folder.readers import read_config
from wecfl.folder.reference import read_reference
from wecfl.methods import named
from wecfl.models import layout_of, make
from wecfl.runs.newcomers import Reception, Visit, columns, parted
from wecfl.runs.observe import OnRound, Watcher
from wecfl.runs.result import Result

__all__ = [
    "check",
    "config_of",
    "federation_of",
    "holds_clients",
    "load_pool",
    "method_of",
    "reception_of",
    "run_config",
]


def run_config(
    config: Config,
    federation: Federation | None = None,
    out: str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
    *,
    resume: bool = False,
    members: Sequence[int] | None = None,
    observe: Observer | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run what a configuration describes (on a federation already made from it, if given).

    >>> run_config(Config(method="fedavg", clients=6, groups=2, rounds=1)).summary["method"]
    'fedavg'
    """
    passed_on = (signature(run).parameters.keys() & Config.model_fields) - {"method"}
    return run(
        federation or federation_of(config),
        method_of(config),
        out=out,
        resume=resume,
        watch=watch,
        written=_written(config.completed()),
        members=members,
        observe=observe,
        progress=progress,
        **config.model_dump(include=passed_on),
    )


def config_of(folder: str | Path) -> Config:
    """The configuration of a run folder, as `wecfl resume` reads it."""
    path = Path(folder)
    written = read_config(path)
    if "network" in written:
        raise ConfigError(
            f"{path} was run over a network: to go on with it, start its app again (flwr run) with "
            f"out = {str(path)!r}"
        )
    if "components" in written:
        raise ConfigError(
            f"{path} was made from Python values, which config.toml can't hold: "
            f"go on with it in Python, by run(…, out={str(path)!r}, resume=True)"
        )
    return resolve(path / "config.toml")


def federation_of(config: Config, pool: Dataset | None = None) -> Federation:
    """The clients a configuration describes (from its data set, if it was loaded already)."""
    config = config.completed()
    federation = _all_data(config, pool)
    return (
        federation.validating(config.validation, config.seed) if config.validation else federation
    )


def _all_data(config: Config, pool: Dataset | None) -> Federation:
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


def load_pool(config: Config, progress: FetchProgress | None = None) -> Dataset:
    """The data set a configuration names, before it is shared out."""
    place = Path(config.data_dir) if config.data_dir else None
    return load(config.dataset, place, progress=progress, test=config.holdout, seed=config.seed)


def holds_clients(config: Config) -> bool:
    """The data set is a folder of clients, so nothing is left to partition."""
    name = config.dataset
    return bool(name) and name not in KNOWN and Path(name).is_dir()


def check(config: Config, federation: Federation) -> None:
    """Raise what a run of this configuration would raise before its first round."""
    method = method_of(config)
    members, _ = parted(federation, config.newcomers, config.unseen, config.seed)
    if config.lr == "theory":
        check_theory(method, Plan(momentum=config.momentum, weight_decay=config.weight_decay))
    model = make(config.model, shape=federation.shape, classes=federation.classes, seed=config.seed)
    method.check(len(members), Plan(config.steps, momentum=config.momentum), layout_of(model))
    if config.clip is not None:
        check_private(
            method, layout_of(model),
            **{
                "lr theory": config.lr == "theory", "diagnostics": config.diagnostics,
                "objectives": bool(config.objectives),
            },
        )  # fmt: skip


def method_of(config: Config) -> Method:
    """The method a configuration describes, with the choices that apply to it.

    >>> method_of(Config(method="ifca", clusters=3, loss_batches=3)).representation
    Losses(batches=3)
    """
    method = named(config.method, config.clusters, config.mu)
    if isinstance(method.representation, Columns):
        method = method.replace(representation=Columns(config.representation))
    if isinstance(method.representation, Losses):
        method = method.replace(representation=Losses(config.loss_batches))
    method = method.replace(clustering=_clustering(config, method.clustering))
    if config.aggregation != "mean":
        method = method.replace(aggregation=_robust(config, method))
    if config.importance != "method":
        chosen = {"data-size": data_size, "uniform": uniform, "batches": Batches(config.batch)}
        method = method.replace(importance=chosen[config.importance])
    return method


def _clustering(config: Config, given: Clustering) -> Clustering:
    """That of a method, with the choices that apply to it."""
    match given:
        case KMeans():
            return KMeans(warm=config.warm_start)
        case Auto():
            return Auto(KMeans(warm=config.warm_start), config.criterion)
        case Bipartition():
            return Bipartition(config.eps1, config.eps2)
        case Agglomerative():
            return Agglomerative(
                config.cluster_round, config.threshold, config.linkage, config.metric
            )
    return given


def _robust(config: Config, method: Method) -> Aggregation:
    """The aggregation that a configuration names, weighing clients as the method does."""
    known = {"trimmed-mean": "share", "krum": "attackers", "multi-krum": "attackers"}
    if config.tolerated is None:
        return robust(config.aggregation, method.aggregation)
    if config.aggregation not in known:
        raise ConfigError(f"{config.aggregation} does not ask how many liars are tolerated")
    return robust(
        config.aggregation, method.aggregation, **{known[config.aggregation]: config.tolerated}
    )


def _written(config: Config) -> dict[str, Any]:
    """`config.toml` holds the choices that applied, so that it repeats the run."""
    idle = PARTITIONING if holds_clients(config) else ()
    return {key: value for key, value in config.toml().items() if key not in idle}


def reception_of(folder: Path, workers: int | None = None) -> tuple[Reception, Config]:
    """All it takes to receive newcomers, and the configuration, from the run folder alone."""
    if "components" in read_config(folder):
        raise ConfigError(
            f"{folder} was made from Python values, which config.toml can't hold: "
            "assign newcomers in Python, by result.assign(x, y)"
        )
    models, config = Models.read(folder), config_of(folder)
    kind, module = models.build(config.seed)
    layout, method = layout_of(module), method_of(config)
    rows = [[models.row(layout, each) for each in clusters] for clusters in models.tensors]
    centers = np.array(rows, np.float32)
    width = np.arange(layout.width)[layout.columns(columns(method, layout).which)].size
    reference = read_reference(folder, centers.shape[1], width)
    plan = Plan(
        config.steps, config.batch, reference.lr, config.momentum, config.keep_momentum,
        config.weight_decay,
    )  # fmt: skip
    options = {"workers": workers, "batchnorm": config.batchnorm, "batch": config.batch}
    visit = Visit(
        method, kind, module, plan, config.seed, local(config.engine), options,
        privacy=None if config.clip is None else Privacy(config.clip, config.noise or 0.0),
    )  # fmt: skip
    return Reception(visit, reference, centers), config
