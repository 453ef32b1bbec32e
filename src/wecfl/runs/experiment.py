"""From a federation and a method to a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from inspect import signature
from math import isfinite
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd

from wecfl import rng
from wecfl.attacks import DataAttack, ModelAttack
from wecfl.base import F32, Aggregation, Int, Method, Plan, Reply, State
from wecfl.bilevel.aggregation import robust
from wecfl.bilevel.clustering import AtLeast, KMeans
from wecfl.bilevel.importance import Batches, data_size, uniform
from wecfl.bilevel.rate import check_theory, theory
from wecfl.bilevel.representation import Columns, Losses
from wecfl.conditions import Conditions
from wecfl.config import PARTITIONING, Config, resolve
from wecfl.data import partition as partitions
from wecfl.data.datasets import KNOWN, Dataset, load
from wecfl.data.federation import Federation
from wecfl.data.fetch import Progress
from wecfl.engine import LocalEngine, make_engine
from wecfl.errors import ConfigError
from wecfl.methods import components, named
from wecfl.models import Model, Module, Vote, fill, layout_of, make
from wecfl.privacy import Privacy
from wecfl.rounds import Observer, Setting, check_clusters, iterate, opening
from wecfl.runs.assault import Assault
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.folder import RunFolder, environment, read_config, read_metrics
from wecfl.runs.observe import AfterRound, OnRound, Watcher
from wecfl.runs.record import Record, Recorder, last_attack, last_rounds, replies, settled
from wecfl.runs.trace import MOST, Trace

__all__ = [
    "Result",
    "Status",
    "check",
    "config_of",
    "federation_of",
    "holds_clients",
    "method_of",
    "run",
    "run_config",
]

Status = Literal["finished", "interrupted", "failed"]
"""How a run ended: all rounds were done, Ctrl-C, or an error."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a run found: the groups, a model for each, and how well each client is served.

    >>> result = run_config(Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False))
    >>> list(result.history.columns[:6])
    ['round', 'accuracy', 'macro_f1', 'ari', 'nmi', 'clusters']
    >>> result.clients.columns.tolist()
    ['client', 'samples', 'group', 'cluster', 'accuracy', 'macro_f1']
    >>> type(result.model(client=3)).__name__
    'Sequential'
    """

    method: Method
    federation: Federation
    records: list[Record]
    """One per round, as in `metrics.jsonl` (`wecfl.runs.record.KEYS`)."""
    states: tuple[State, ...]
    """The final state; several for a soft vote."""
    architecture: Module
    engine: str
    """What trained the clients, as part of the reproducibility key."""
    seconds: float
    seed: int
    status: Status = "finished"
    folder: Path | None = None
    privacy: Privacy | None = None
    delta: float = 1e-5

    @property
    def labels(self) -> Int:
        """(m,), the cluster of each client, r_ik = [labels_i = k] (of the first soft-voted run)."""
        return self.states[0].labels

    @property
    def centers(self) -> F32:
        """(K, P), the clusters' models Ω_k as rows (of the first soft-voted run)."""
        return self.states[0].centers

    def model(self, *, client: int | None = None, cluster: int | None = None) -> Module:
        """The model that serves a client, or that of a cluster, ready to predict."""
        if (client is None) == (cluster is None):
            raise ConfigError("name one: model(client=17) or model(cluster=3)")
        kind, number = ("client", client) if cluster is None else ("cluster", cluster)
        stack = [state.models if cluster is None else state.centers for state in self.states]
        if number is None or not 0 <= number < len(stack[0]):
            raise ConfigError(f"no {kind} {number}: they are numbered 0 to {len(stack[0]) - 1}")
        rows = [rows[number] for rows in stack]
        members = [fill(self.architecture, row) for row in rows]
        return members[0] if len(members) == 1 else Vote(members).eval()

    @property
    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The clusters' models by name, `cluster.K.NAME`, as in `models.safetensors`."""
        layout, several = layout_of(self.architecture), len(self.states) > 1
        return {
            f"{f'member.{j}.' if several else ''}cluster.{k}.{name}": np.ascontiguousarray(tensor)
            for j, state in enumerate(self.states)
            for k, center in enumerate(state.centers)
            for name, tensor in layout.tensors(center).items()
        }

    @property
    def summary(self) -> dict[str, Any]:
        """Means of the last three rounds, groups found, time and status, as in `summary.json`."""
        return {
            "method": self.method.name,
            "engine": self.engine,
            "k": max(self.method.k, self.method.members),
            "rounds": len(self.records),
            **last_rounds(self.records),
            "clusters": self.records[-1]["clusters"] if self.records else None,
            "settled": settled(self.records),
            **self._told,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "status": self.status,
        }

    @property
    def _told(self) -> dict[str, Any]:
        """What a run with attackers or with privacy has to tell besides."""
        told: dict[str, Any] = {**last_attack(self.records)}
        if self.privacy:
            rounds = int((replies(self.records, len(self.federation)) != Reply.ABSENT).sum(0).max())
            epsilon = self.privacy.epsilon(rounds, self.delta)
            told["privacy"] = {
                "epsilon": epsilon if isfinite(epsilon) else None,
                "delta": self.delta,
                "rounds": rounds,
            }
        return told

    @property
    def history(self) -> pd.DataFrame:
        """The records as a table, one row per round."""
        flat = [{k: v for k, v in record.items() if k != "clients"} for record in self.records]
        return pd.json_normalize(flat)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client: its data, its cluster and its scores in the last round."""
        fed = self.federation
        last = self.records[-1]["clients"] if self.records else {}
        columns = {"client": fed.names, "samples": fed.sizes, "group": fed.groups}
        refused = (replies(self.records, len(fed)) >= Reply.NOT_FINITE).sum(axis=0)
        if refused.any():
            columns["refused"] = refused
        shown = {name: values for name, values in last.items() if name != "reply"}
        return pd.DataFrame(columns | {"cluster": self.labels} | shown)

    def table(self) -> pd.DataFrame:
        """The result in one line: accuracy, macro-F1, groups found, ARI, seconds."""
        return pd.DataFrame([self.summary]).set_index("method")


def run(
    federation: Federation,
    method: Method,
    *,
    model: Model = "auto",
    rounds: int = 30,
    steps: int = 10,
    batch: int = 32,
    lr: float | Literal["theory"] = 0.001,
    momentum: float = 0.9,
    keep_momentum: bool = True,
    weight_decay: float = 0.0,
    batchnorm: Literal["running", "batch"] = "running",
    participation: float = 1.0,
    dropout: float = 0.0,
    stragglers: float = 0.0,
    refuse_above: float = 100.0,
    min_cluster: int = 1,
    attack: str | DataAttack | ModelAttack | None = None,
    attackers: float | None = None,
    attack_strength: float | None = None,
    clip: float | None = None,
    noise: float | None = None,
    delta: float | None = None,
    seed: int = 0,
    engine: Literal["auto", "native", "torch"] = "auto",
    workers: int | None = None,
    objectives: bool = True,
    diagnostics: bool = False,
    trace: bool | None = None,
    out: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: bool = False,
    watch: Sequence[Watcher | OnRound] = (),
    config: Config | None = None,
    members: Sequence[int] | None = None,
    observe: Observer | None = None,
) -> Result:
    """Train a federation with a method.

    Args:
        federation: the clients and their data D_i.
        method: a value of `wecfl.methods`, or your own.
        model: a module, whose parameters are the common start; a function that makes one, called
            with its random draws keyed by `seed`; or a name from `wecfl.models.MODELS`.
        rounds: T.
        steps: Q, mini-batches of local training in a round.
        batch: samples in a mini-batch.
        lr: η, or `theory`: Theorem 1's bound for each client, anew in every round.
        momentum: of SGD.
        keep_momentum: clients keep their momentum buffer between rounds, as in the paper.
        weight_decay: of SGD.
        batchnorm: BatchNorm in tests: `running` statistics or those of each test `batch`.
        participation: the share of clients that take part in a round; the others keep their
            cluster and count in no center.
        dropout: the probability that a client trains but its reply is lost.
        stragglers: the probability that a client gets to fewer than Q steps.
        refuse_above: updates so many times longer than the round's median are refused, as are
            models that are not finite.
        min_cluster: smaller clusters are dissolved, and no center is made of fewer models.
        attack: what lying clients do, by name or as a value of `wecfl.attacks`.
        attackers: the share of clients that lie, 0.2 if not said.
        attack_strength: of the attack, where it has one.
        clip: clients clip their update to this length before they send it.
        noise: and add Gaussian noise of so many times that length (`wecfl.privacy`).
        delta: δ, for which the privacy budget ε is told, 1e-5 if not said.
        seed: everything random follows from it.
        engine: `native`, `torch`, or `auto`: native where it knows every layer of the model.
        workers: threads or processes; the result does not depend on them. Default: one per core.
        objectives: measure R on all training data twice a round.
        diagnostics: also measure what the theory speaks of (`docs/theory.md`).
        trace: record the clients' distances in the run folder (default: up to 500 clients).
        out: a run folder to write, see `wecfl.runs.folder`.
        checkpoint_every: rounds between two checkpoints of the run folder.
        resume: go on with the run in `out` (the same federation and method) where it was stopped;
            what it comes to is the same to the bit as without the stop.
        watch: told when the run begins, after each round and when it ends, see
            `wecfl.runs.observe`; a function is called after each round.
        config: the configuration to write into the run folder, if it came from one.
        members: which of a soft vote's independent runs to train, by number. Default: all of them.
        observe: called after each step of a round (of the first member of a soft vote).

    >>> import numpy as np, wecfl
    >>> x = [np.full((8, 2), i % 2, np.float32) for i in range(4)]     # two kinds of clients
    >>> fed = wecfl.Federation.from_arrays(x, [np.arange(8) % 2] * 4)
    >>> result = wecfl.run(fed, wecfl.methods.wecfl(k=2), model="logistic", rounds=2, workers=1)
    >>> result.labels[0] == result.labels[2], result.labels[0] == result.labels[1]
    (np.True_, np.False_)

    """
    if not isinstance(method, Method):
        raise ConfigError(f"method must be a value such as methods.wecfl(k=10), got {method!r}")
    _check_whole(
        rounds=(rounds, 1), steps=(steps, 1), batch=(batch, 1), seed=(seed, 0),
        checkpoint_every=(checkpoint_every, 1),
    )  # fmt: skip
    if resume and out is None:
        raise ConfigError("resume goes on with a run folder: name it as out")
    plan = Plan(steps, batch, _number(lr), momentum, keep_momentum, weight_decay)
    check_clusters(method, len(federation))
    rate = theory if lr == "theory" else None
    if rate:
        check_theory(method, plan)
    if min_cluster > 1:
        method = method.replace(clustering=AtLeast(method.clustering, min_cluster))
    module = make(model, shape=federation.shape, classes=federation.classes, seed=seed)
    privacy = None if clip is None else Privacy(clip, noise or 0.0)
    assault = None
    if attack is not None:
        assault = Assault.on(federation, attack, attackers, attack_strength, seed)
    conditions = Conditions(
        participation, dropout, stragglers,
        attack=assault.forging if assault else None,
        attackers=assault.attackers if assault else None,
        privacy=privacy, most=refuse_above, least=min_cluster, keys=federation.keys,
    )  # fmt: skip
    _check_conditions(conditions, method, plan, module, len(federation))
    options = {"workers": workers, "batchnorm": batchnorm, "batch": batch}
    with ExitStack() as stack:
        folder = None
        if out is not None:
            folder = RunFolder(Path(out), every=checkpoint_every, again=resume)
            stack.enter_context(folder)
        held = assault.federation if assault else federation
        runner = stack.enter_context(make_engine(engine, held, module, **options))
        trap = None
        if assault and assault.bait:
            trap = stack.enter_context(make_engine(engine, assault.bait, module, **options))
        settings = [
            Setting(
                method, runner, plan, rng.derive(seed, "member", j) if j else seed, j, rate,
                conditions,
            )
            for j in (range(method.members) if members is None else members)
        ]  # fmt: skip
        written = _written(config) if config else _described(settings[0], model, rounds, seed)
        watchers = [each if isinstance(each, Watcher) else AfterRound(each) for each in watch]
        recorder = Recorder(
            method, runner, federation.groups, objectives=objectives, assault=assault, trap=trap
        )
        return _train(
            settings, runner, federation, module, recorder,
            rounds=rounds, written=written, folder=folder, watchers=watchers, observe=observe,
            diagnostics=diagnostics, trace=trace, delta=1e-5 if delta is None else delta,
        )  # fmt: skip


def _train(
    settings: Sequence[Setting],
    engine: LocalEngine,
    federation: Federation,
    module: Module,
    recorder: Recorder,
    *,
    rounds: int,
    written: Mapping[str, Any],
    folder: RunFolder | None,
    watchers: Sequence[Watcher],
    observe: Observer | None,
    diagnostics: bool,
    trace: bool | None,
    delta: float,
) -> Result:
    """All rounds, or those that are left; the result is also told where an error ends them."""
    method, seed = settings[0].method, settings[0].seed
    saved = folder.saved if folder else None
    records: list[Record] = read_metrics(folder.path, saved.round) if folder and saved else []
    if folder and len(records) >= rounds + (not folder.ended):
        raise ConfigError(
            f"{folder.path} has its {len(records)} rounds: to go on, ask for more of them"
        )
    began = perf_counter() - (saved.manifest.seconds if saved else 0.0)
    states = saved.states if saved else tuple(opening(setting) for setting in settings)
    del saved  # or its matrices stay while the run moves on
    watched = None
    if diagnostics:
        watched = Diagnostics(settings[0], states[0], records[-1] if records else None)
    recorder.begin(states[0].labels, watched)
    first = [observe] if observe else []  # of a soft vote, these see the first run only
    if watched:
        first.append(watched.step)
    if folder:
        watchers = [folder, *watchers]
        if len(federation) <= MOST if trace is None else trace:
            first.append(Trace(folder.path, method, engine, seed).step)
    paths = [
        iterate(setting, state, recorder.step, *([] if j else first))
        for j, (setting, state) in enumerate(zip(settings, states, strict=True))
    ]
    begun: list[Watcher] = []  # what has to be ended
    status: Status = "failed"
    try:  # from here on nothing can be wrong with what was asked for
        env = {**environment(), "engine": engine.name, "workers": engine.workers}
        for watcher in watchers:
            watcher.begin(written, env, federation)
            begun.append(watcher)
        while len(records) < rounds:
            reached = tuple(next(path) for path in paths)
            records.append(recorder.round(reached))
            states = reached
            for watcher in watchers:
                watcher.round(records[-1], states)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        result = Result(
            method, federation, records, states, module, engine.name, perf_counter() - began, seed,
            status, folder.path if folder else None, settings[0].conditions.privacy, delta,
        )  # fmt: skip
        for watcher in begun:
            watcher.end(result)
    return result


def run_config(
    config: Config,
    federation: Federation | None = None,
    out: str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
    *,
    resume: bool = False,
    members: Sequence[int] | None = None,
    observe: Observer | None = None,
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
        config=config.completed(),
        members=members,
        observe=observe,
        **config.model_dump(include=passed_on),
    )


def config_of(folder: str | Path) -> Config:
    """The configuration of a run folder, as `wecfl resume` reads it."""
    path = Path(folder)
    written = read_config(path)
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


def load_pool(config: Config, progress: Progress | None = None) -> Dataset:
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
    check_clusters(method, len(federation))
    if config.lr == "theory":
        check_theory(method, Plan(momentum=config.momentum, weight_decay=config.weight_decay))
    model = make(config.model, shape=federation.shape, classes=federation.classes, seed=config.seed)
    if isinstance(method.representation, Columns):
        layout_of(model).columns(method.representation.which)


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
    if isinstance(method.clustering, KMeans):
        method = method.replace(clustering=KMeans(warm=config.warm_start))
    if config.aggregation != "mean":
        method = method.replace(aggregation=_robust(config, method))
    if config.importance != "method":
        chosen = {"data-size": data_size, "uniform": uniform, "batches": Batches(config.batch)}
        method = method.replace(importance=chosen[config.importance])
    return method


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


def _check_conditions(
    conditions: Conditions, method: Method, plan: Plan, module: Module, m: int
) -> None:
    """Refuse what can't be simulated, or would promise what it does not keep."""
    conditions.steps(plan, 1, 0, 0)
    if conditions.least > m:
        raise ConfigError(f"{m} clients can't form a cluster of {conditions.least}")
    if conditions.privacy is None:
        return
    if not method.representation.server_side:
        raise ConfigError(
            f"clients of {method.name} tell the server which model they like best, which no noise "
            f"protects: choose a method that clusters by models"
        )
    layout = layout_of(module)
    shared = np.arange(layout.width)[layout.columns(method.shared)]
    if (shared >= layout.trainable).any():
        raise ConfigError(
            "noise on BatchNorm's statistics or on frozen parameters makes no sense: with privacy, "
            "use a model without them"
        )


def _check_whole(**numbers: tuple[Any, int]) -> None:
    """Each a whole number, and not below its least."""
    for name, (number, least) in numbers.items():
        if not isinstance(number, Integral) or int(number) < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {number!r}")


def _number(lr: float | str) -> float:
    """η of the plan; where a rule sets it in every round, the plan's is not used."""
    if not isinstance(lr, str):
        return lr
    if lr != "theory":
        raise ConfigError(f"lr must be a number or 'theory', got '{lr}'")
    return 0.0


def _written(config: Config) -> dict[str, Any]:
    """`config.toml` holds the choices that applied, so that it repeats the run."""
    idle = PARTITIONING if holds_clients(config) else ()
    return {key: value for key, value in config.toml().items() if key not in idle}


def _described(setting: Setting, model: object, rounds: int, seed: int) -> dict[str, Any]:
    """What can be written down of a run made from Python values; not enough to repeat it."""
    method, plan, rate = setting.method, setting.plan, setting.rate
    return {
        "method": method.name,
        "clusters": method.k,
        "rounds": rounds,
        "seed": seed,
        "model": model if isinstance(model, str) else type(model).__name__,
        "plan": {
            name: value
            for name, value in (asdict(plan) | ({"lr": "theory"} if rate else {})).items()
            if value is not None
        },
        "conditions": _described_conditions(setting.conditions),
        "components": components(method),
    }


def _described_conditions(conditions: Conditions) -> dict[str, Any]:
    """What is not as usual."""
    usual = Conditions()
    told = {
        name: getattr(conditions, name)
        for name in ("participation", "dropout", "stragglers", "most", "least", "attack", "privacy")
        if getattr(conditions, name) != getattr(usual, name)
    }
    if conditions.attackers is not None:
        told["attackers"] = np.flatnonzero(conditions.attackers)
    return {
        name: each if isinstance(each, float | int | np.ndarray) else repr(each)
        for name, each in told.items()
    }
