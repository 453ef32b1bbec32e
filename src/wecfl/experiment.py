"""From a federation and a method to a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd

from wecfl import rng
from wecfl.bilevel.clustering import AtLeast
from wecfl.bilevel.rate import check_theory, theory
from wecfl.channel.attacks import DataAttack, ModelAttack
from wecfl.channel.privacy import NO_NETWORK, Privacy, check_private
from wecfl.config import check_together
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import Plan
from wecfl.core.presence import Channel
from wecfl.core.rounds import Observer, iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import Clients, State
from wecfl.data.federation import Federation
from wecfl.engine import local, make_engine
from wecfl.engine.ray import Progress
from wecfl.errors import ConfigError
from wecfl.folder.readers import read_metrics
from wecfl.folder.trace import MOST, Trace
from wecfl.folder.writer import RunFolder, environment
from wecfl.methods import components
from wecfl.models import Model, Module, layout_of, make
from wecfl.runs.assault import Assault
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.newcomers import (
    NO_BUDGET,
    Blueprint,
    Reception,
    Reference,
    Visit,
    parted,
    table,
)
from wecfl.runs.observe import AfterRound, OnRound, Watcher
from wecfl.runs.record import Record, Recorder
from wecfl.runs.result import Result, Status

__all__ = ["run"]


def run(
    federation: Federation | Clients,
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
    newcomers: float | None = None,
    unseen: int | None = None,
    seed: int = 0,
    engine: Literal["auto", "native", "torch", "ray"] | Engine = "auto",
    ray_address: str | None = None,
    workers: int | None = None,
    objectives: bool | None = None,
    diagnostics: bool = False,
    trace: bool | None = None,
    out: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: bool = False,
    watch: Sequence[Watcher | OnRound] = (),
    written: Mapping[str, Any] | None = None,
    members: Sequence[int] | None = None,
    observe: Observer | None = None,
    progress: Progress | None = None,
) -> Result:
    """Train a federation with a method.

    Args:
        federation: the clients and their data D_i; of an engine that is given, what it knows of
            them.
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
        attack: what lying clients do, by name or as a value of `wecfl.channel.attacks`.
        attackers: the share of clients that lie, 0.2 if not said.
        attack_strength: of the attack, where it has one.
        clip: clients clip their update to this length before they send it.
        noise: and add Gaussian noise of so many times that length (`wecfl.channel.privacy`);
            only in a simulation, not with an engine that is given.
        delta: δ, for which the privacy budget ε is told, 1e-5 if not said.
        newcomers: the share of clients that is kept out of the training and assigned to a cluster
            at its end, `result.newcomers`.
        unseen: a generating group whose clients are all kept out, to be found novel.
        seed: everything random follows from it.
        engine: `native`, `torch`, or `auto`: native where it knows every layer of the model; `ray`:
            one of them in each actor of a Ray cluster, with the same bits (`docs/cluster.md`); or
            an engine, which stays open.
        ray_address: HOST:PORT of a running cluster that this machine is a node of, or `auto`;
            without it Ray is started for this run alone.
        workers: threads, processes or actors; the result does not depend on them. Default: one per
            core.
        objectives: measure R on all training data twice a round; by default unless `clip` is given.
        diagnostics: also measure what the theory speaks of (`docs/theory.md`).
        trace: record the clients' distances in the run folder (default: up to 500 clients).
        out: a run folder to write, see `wecfl.folder.writer`.
        checkpoint_every: rounds between two checkpoints of the run folder.
        resume: go on with the run in `out` (the same federation and method) where it was stopped;
            what it comes to is the same to the bit as without the stop.
        watch: told when the run begins, after each round and when it ends, see
            `wecfl.runs.observe`; a function is called after each round.
        written: what to write into `config.toml`; by default a description of these values.
        members: which of a soft vote's independent runs to train, by number. Default: all of them.
        observe: called after each step of a round (of the first member of a soft vote).
        progress: told how many clients are done with a step; only `ray` tells.

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
    check_together(
        attack=attack, attackers=attackers, attack_strength=attack_strength, clip=clip,
        noise=noise, delta=delta, engine=engine, ray_address=ray_address,
    )  # fmt: skip
    plan = Plan(steps, batch, _number(lr), momentum, keep_momentum, weight_decay)
    federation, late = parted(federation, newcomers, unseen, seed)
    rate = theory if lr == "theory" else None
    if rate:
        check_theory(method, plan)
    if min_cluster > 1:
        method = method.replace(clustering=AtLeast(method.clustering, min_cluster))
    module = make(model, shape=federation.shape, classes=federation.classes, seed=seed)
    method.check(len(federation), plan, layout_of(module))
    privacy = None if clip is None else Privacy(clip, noise or 0.0)
    delta = 1e-5 if delta is None else delta
    objectives = privacy is None if objectives is None else objectives
    if privacy:
        measured = {"lr theory": bool(rate), "diagnostics": diagnostics, "objectives": objectives}
        _check_privacy(privacy, delta, method, module, engine, measured)
    spent = privacy is not None and (participation < 1 or method.start == "each")
    if late and spent:
        raise ConfigError(NO_BUDGET)
    assault = None
    if attack is not None:
        if not isinstance(federation, Federation):
            raise ConfigError("attacks are simulated: they need the clients' data")
        assault = Assault.on(federation, attack, attackers, attack_strength, seed)
    channel = Channel(
        participation, dropout, stragglers,
        attack=assault.forging if assault else None,
        attackers=assault.attackers if assault else None,
        privacy=privacy,
        refuse_above=refuse_above, min_cluster=min_cluster, keys=federation.keys, seed=seed,
    )  # fmt: skip
    channel.check(plan, len(federation))
    options: dict[str, Any] = {"workers": workers, "batchnorm": batchnorm, "batch": batch}
    cluster = {"address": ray_address, "progress": progress} if engine == "ray" else {}
    with ExitStack() as stack:
        folder = None
        if out is not None:
            folder = RunFolder(Path(out), every=checkpoint_every, again=resume)
            stack.enter_context(folder)
        started = partial(_started, stack, engine, module, {**options, **cluster})
        runner = started(assault.federation if assault else federation)
        trap = started(assault.bait) if assault and assault.bait else None
        guests = started(late) if late else None
        settings = [
            Setting(
                method, runner, plan, rng.derive(seed, "member", j) if j else seed, j, rate,
                channel,
            )
            for j in (range(method.members) if members is None else members)
        ]  # fmt: skip
        if written is None:
            written = _described(settings[0], model, rounds, seed)
        watchers = [each if isinstance(each, Watcher) else AfterRound(each) for each in watch]
        recorder = Recorder(
            settings[0], federation.groups, objectives=objectives, assault=assault, trap=trap
        )
        visit = Visit(
            method, Blueprint.of(model, module, federation), module, plan, settings[0].seed,
            local(engine), options, settings[0].member, rate, privacy, spent,
        )  # fmt: skip
        # Else later, if at all; over a network it would take one more round of everyone.
        here = isinstance(engine, str)
        known = here and not spent and (folder, late, assault) != (None, None, None)
        return _train(
            settings, runner, federation, module, recorder,
            rounds=rounds, written=written, folder=folder, watchers=watchers, observe=observe,
            diagnostics=diagnostics, trace=trace, privacy=privacy, delta=delta, visit=visit,
            unseen=unseen,
            receive=partial(_receive, settings[0], visit, late, guests) if known else None,
        )  # fmt: skip


def _train(
    settings: Sequence[Setting],
    engine: Engine,
    federation: Clients,
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
    privacy: Privacy | None,
    delta: float,
    visit: Visit,
    unseen: int | None,
    receive: Callable[[Sequence[State]], tuple[Reference, pd.DataFrame | None]] | None,
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
    reference: Reference | None = None
    newcomers: pd.DataFrame | None = None
    try:  # from here on nothing can be wrong with what was asked for
        where = {"engine": engine.name, "workers": engine.workers, "nodes": engine.nodes}
        env = {**environment(), **where}
        for watcher in watchers:
            watcher.begin(written, env, federation)
            begun.append(watcher)
        while len(records) < rounds:
            reached = tuple(next(path) for path in paths)
            records.append(recorder.round(reached))
            states = reached
            for watcher in watchers:
                watcher.round(records[-1], states)
        if receive:
            reference, newcomers = receive(states)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        result = Result(
            method, federation, records, states, module, engine.name, perf_counter() - began, seed,
            visit, status, folder.path if folder else None, privacy, delta, reference, newcomers,
            unseen,
        )  # fmt: skip
        for watcher in begun:
            watcher.end(result)
    return result


def _started(
    stack: ExitStack, engine: Any, module: Module, options: Mapping[str, Any], held: Clients
) -> Engine:
    """An engine for these clients, which the stack closes; or the one that was given."""
    if not isinstance(engine, str):
        given: Engine = engine
        return given
    if not isinstance(held, Federation):
        raise ConfigError(f"the engine {engine} needs the clients' data, got {held!r}")
    choice: Any = engine
    return stack.enter_context(make_engine(choice, held, module, **options))


def _receive(
    setting: Setting,
    visit: Visit,
    late: Federation | None,
    guests: Engine | None,
    states: Sequence[State],
) -> tuple[Reference, pd.DataFrame | None]:
    """What newcomers are compared with; and those that were kept out, on their engine."""
    reference = Reference.of(setting, states[0])
    if late is None:
        return reference, None
    reception = Reception(visit, reference, np.stack([state.centers for state in states]))
    return reference, table(reception.receive(late, engine=guests), late.groups)


def _check_privacy(
    privacy: Privacy,
    delta: float,
    method: Method,
    module: Module,
    engine: object,
    measured: Mapping[str, bool],
) -> None:
    if not isinstance(engine, str):
        raise ConfigError(NO_NETWORK)
    check_private(method, layout_of(module), **measured)
    privacy.epsilon(1, delta)  # what can't be told in the end is not begun


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
        "conditions": _described_conditions(setting.channel),
        "components": components(method),
    }


def _described_conditions(channel: Channel) -> dict[str, Any]:
    """What is not as usual."""
    usual = Channel()
    told = {
        name: getattr(channel, name)
        for name in (
            "participation",
            "dropout",
            "stragglers",
            "refuse_above",
            "min_cluster",
            "attack",
            "privacy",
        )
        if getattr(channel, name) != getattr(usual, name)
    }
    if channel.attackers is not None:
        told["attackers"] = np.flatnonzero(channel.attackers)
    return {
        name: each if isinstance(each, float | int | np.ndarray) else repr(each)
        for name, each in told.items()
    }
