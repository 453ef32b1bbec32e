"""The two objectives of the paper's bi-level problem, as functions of a state."""

from __future__ import annotations

import numpy as np

from wecfl.base import Engine, Method, State

__all__ = ["F", "R"]


def F(state: State, method: Method, engine: Engine) -> float:  # noqa: N802
    """The clustering objective F = 1/Σλ · Σ_i λ_i d(g_i, G_{labels_i}).

    >>> from types import SimpleNamespace
    >>> from wecfl import Layout, methods
    >>> engine = SimpleNamespace(layout=Layout.of([("w", (1,), ["head"])]), sizes=np.array([3, 1]))
    >>> models, centers = np.array([[0], [4]], np.float32), np.array([[1]], np.float32)
    >>> F(State(1, models, centers, np.array([0, 0])), methods.wecfl(1), engine)  # (3·1 + 1·9) / 4
    3.0
    """
    distances = method.representation.own(state, engine, method.distance)
    return float(np.average(distances, weights=method.importance(engine.sizes)))


def R(state: State, method: Method, engine: Engine) -> float:  # noqa: N802
    """The learning objective R = 1/Σλ · Σ_i λ_i L(ω_i, D_i), on all training data.

    After the D-step ω_i = Ω_{labels_i}, and this is the paper's upper-level objective; after the
    L-step it is what the local updates made of it.

    >>> from types import SimpleNamespace
    >>> from wecfl import methods
    >>> engine = SimpleNamespace(sizes=np.array([3, 1]), risk=lambda models: np.array([0.5, 0.9]))
    >>> R(State(1, np.zeros((2, 1)), np.zeros((1, 1)), np.zeros(2)), methods.wecfl(1), engine)
    0.6
    """
    return float(np.average(engine.risk(state.models), weights=method.importance(engine.sizes)))
