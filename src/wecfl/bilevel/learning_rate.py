"""Learning rates that are set in every round (`wecfl.core.components.Rate`)."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.bounds import gradient_bound, lr_bound_1
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.evaluation import gradients
from wecfl.bilevel.representation.from_models import is_projected
from wecfl.bilevel.smoothness import largest_curvature
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.state import State
from wecfl.core.types import F32, F64
from wecfl.errors import ConfigError

__all__ = ["check_theory", "theory"]


def theory(gap: F64, state: State, engine: Engine, plan: LocalPlan, seed: int) -> F32:
    """Theorem 1's bound for each client, η_i = ‖ω_i − Ω_k‖ / (Q·U).

    U is measured in every round: each client computes a mini-batch gradient at the model that it is
    sent, and U is the largest norm. In the first round no client has moved yet, so F is 0, and the
    theorem gives η = 0. In that round η is 1/β, for which the bound of the descent lemma (Lemma 5)
    is best; β comes from a few gradient probes (decision 10).

    >>> from types import SimpleNamespace
    >>> from wecfl import Layout
    >>> from wecfl.core.program import Answers
    >>> def ask(job, sent, who, memory):
    ...     slope = sent.own["model"] * np.float32([1, 4])
    ...     return Answers({"gradient": slope}, np.zeros(2, np.int8))
    >>> engine = SimpleNamespace(layout=Layout.of([("w", (2,), ["head"])]), ask=ask)
    >>> models = np.array([[1, 1], [2, 0]], np.float32)
    >>> state = State(0, {"model": models}, np.zeros((1, 2)), np.zeros(2, int))
    >>> theory(np.zeros(2), state, engine, LocalPlan(), seed=0).round(4).tolist()     # 1/β
    [0.25, 0.25]
    >>> later = state.replace(round=1)
    >>> theory(np.array([0.0, 8.0]), later, engine, LocalPlan(), seed=0).round(4)
    array([0.   , 0.194], dtype=float32)
    """
    if state.round == 0:
        slope = gradients(engine, state.models)
        beta = largest_curvature(engine, state.models, slope, slope)
        return np.full(len(gap), 1 / beta if beta > 0 else 0.0, dtype=np.float32)
    sampled = gradients(engine, state.models, batches=1, seed=seed, round=state.round)
    bound = lr_bound_1(gap, plan.steps, gradient_bound(sampled[None]))
    return np.where(np.isfinite(bound), bound, 0).astype(np.float32)  # ∞ if there is no gradient


def check_theory(method: Method, plan: LocalPlan) -> None:
    """Raise an error if Theorem 1 does not cover the method or the plan.

    >>> from wecfl import methods
    >>> check_theory(methods.wecfl(k=3), LocalPlan(momentum=0.9))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: lr theory needs plain gradient steps, got momentum 0.9
    """
    if other := plan.not_plain():
        raise ConfigError(f"lr theory needs plain gradient steps, got {other}")
    if plan.epochs:
        raise ConfigError(
            "lr theory needs the same number of steps at each client: give steps, not epochs"
        )
    if is_projected(method.representation):
        raise ConfigError(
            "lr theory needs the distances of models that are not projected: leave out project, "
            "or give lr as a number"
        )
    if method.distance is not squared_euclidean or method.steps != ("L", "E", "M", "D"):
        raise ConfigError(
            f"lr theory needs a method that compares clients by their models and has the steps "
            f"L, E, M, D in this order, and {method.name} does not: give lr as a number"
        )
