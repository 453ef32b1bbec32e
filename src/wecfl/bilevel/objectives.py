"""The objectives of the paper's bi-level problem: F of the clustering and R of the learning."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.evaluation import risk
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.state import State
from wecfl.core.types import F64

__all__ = ["F", "R", "gaps"]


def F(state: State, method: Method, engine: Engine, seed: int = 0) -> float:  # noqa: N802
    """The clustering objective F = 1/Σλ · Σ_i λ_i d(g_i, G_{labels_i}), over clients that replied.

    >>> from types import SimpleNamespace
    >>> from wecfl import Layout, methods
    >>> engine = SimpleNamespace(layout=Layout.of([("w", (1,), ["head"])]), sizes=np.array([3, 1]))
    >>> models, centers = np.array([[0], [4]], np.float32), np.array([[1]], np.float32)
    >>> state = State(1, {"model": models}, centers, np.array([0, 0]))
    >>> F(state, methods.wecfl(1), engine)                                  # (3·1 + 1·9) / 4
    3.0
    """
    distances = method.representation.own_distances(state, engine, method.distance, seed)
    weights = method.importance(engine.sizes) * state.heard
    return float(np.average(distances, weights=weights)) if weights.any() else 0.0


def R(  # noqa: N802
    state: State, method: Method, engine: Engine, *, batches: int | None = None, seed: int = 0
) -> float:
    """The learning objective R = 1/Σλ · Σ_i λ_i L(ω_i, D_i), on all training data.

    After the D-step ω_i = Ω_{labels_i}, and this is the paper's upper-level objective. After the
    L-step it is its value for the locally updated models. With `batches`, it is an estimate, from
    this number of mini-batches of each client, drawn for (seed, round, client). The draw does not
    depend on the models, so the estimate is unbiased; and in a round, the same samples show what L
    and D change.

    >>> from types import SimpleNamespace
    >>> from wecfl import methods
    >>> from wecfl.core.program import Answers
    >>> engine = SimpleNamespace(sizes=np.array([3, 1]), ask=lambda job, sent, who, memory: Answers(
    ...     {"risk": np.array([0.5, 0.9])}, np.zeros(2, np.int8)))
    >>> R(State(1, None, np.zeros((1, 1)), np.zeros(2, int)), methods.wecfl(1), engine)
    0.6
    """
    found = risk(
        engine, state.models, batches=batches, shared=method.shared, state=state, seed=seed
    )
    return float(np.average(found, weights=method.importance(engine.sizes)))


def gaps(state: State, method: Method, engine: Engine, seed: int = 0) -> F64:
    """(m,), ‖g_i − G_{labels_i}‖, how far each client is from its center (d is its square).

    >>> from types import SimpleNamespace
    >>> from wecfl import Layout, methods
    >>> engine = SimpleNamespace(layout=Layout.of([("w", (1,), ["head"])]), sizes=np.array([3, 1]))
    >>> models, centers = np.array([[0], [4]], np.float32), np.array([[1]], np.float32)
    >>> state = State(1, {"model": models}, centers, np.array([0, 0]))
    >>> gaps(state, methods.wecfl(1), engine).tolist()
    [1.0, 3.0]
    """
    return np.sqrt(method.representation.own_distances(state, engine, method.distance, seed))
