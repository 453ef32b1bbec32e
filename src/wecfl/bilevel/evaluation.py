"""Evaluates models at the clients: losses, gradients and tallies, each in one exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

from wecfl.bilevel.local.evaluating import ClusterLosses, Gradients, Risk, Score
from wecfl.bilevel.serving import Center
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job, Sent
from wecfl.core.state import Reply, State
from wecfl.core.types import F32, F64, Bool, Int, Split, Table

__all__ = ["gradients", "losses", "risk", "served_tallies", "tallies"]


def losses(
    engine: Engine,
    models: F32,
    *,
    batches: int | None = None,
    seed: int = 0,
    round: int = 0,
    who: Int | None = None,
) -> F64:
    """(n, K), the mean training loss of K models on each client in `who`; NaN without a reply."""
    job = Job(ClusterLosses(batches), seed=seed, round=round)
    found: F64 = _answers(engine, job, Sent({}, {"models": models}), who)["losses"]
    return found


def risk(
    engine: Engine,
    models: F32,
    split: Split = "train",
    *,
    batches: int | None = None,
    shared: str = "all",
    state: State | None = None,
    seed: int = 0,
) -> F64:
    """(m,), the mean loss of each client's own model; NaN without a reply."""
    round, tick = (state.round, state.tick) if state else (0, 0)
    job = Job(Risk(split, batches), seed=seed, round=round, tick=tick, shared=shared)
    memory = state.memory if state else {}
    found: F64 = _answers(engine, job, Sent({"model": models}), None, memory)["risk"]
    return found


def gradients(
    engine: Engine,
    models: F32,
    *,
    batches: int | None = None,
    seed: int = 0,
    round: int = 0,
) -> F32:
    """(m, trainable), the gradient at each client's own model; zeros without a reply."""
    job = Job(Gradients(batches), seed=seed, round=round)
    found: F32 = _answers(engine, job, Sent({"model": models}), None, lost=0.0)["gradient"]
    return found


def tallies(engine: Engine, models: F32, split: Split) -> F64:
    """(m, …), the task's tallies of models (m, P), or of the mean outputs of (m, J, P)."""
    name = "models" if models.ndim == 3 else "model"
    job = Job(Score(Center(), split))
    found: F64 = _answers(engine, job, Sent({name: models}), None, lost=0)["after"]
    return found


def served_tallies(
    engine: Engine, method: Method, state: State, plan: LocalPlan, seed: int
) -> dict[str, F64]:
    """(m, …), the tallies on test data for each moment of the method's serving."""
    job = Job(
        Score(method.serve, "test", method.local), plan, seed, state.round, state.tick,
        method.shared,
    )  # fmt: skip
    return _answers(engine, job, method.serve.sent(state), None, state.memory, lost=0)


def _answers(
    engine: Engine,
    job: Job,
    sent: Sent,
    who: Int | None,
    memory: Table | None = None,
    *,
    lost: float = np.nan,
) -> dict[str, Any]:
    """What clients reply, and the value `lost` for clients that do not reply."""
    answers = engine.ask(job, sent, who, memory or {})
    silent: Bool = answers.outcome != Reply.HEARD
    for rows in answers.rows.values():
        rows[silent] = lost
    return answers.rows
