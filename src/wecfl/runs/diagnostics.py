"""Diagnostics: the quantities of the paper's theory, measured during a run (`--diagnostics`)."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, final

import numpy as np

from wecfl import rng
from wecfl.bilevel import bounds
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.evaluation import gradients
from wecfl.bilevel.objectives import gaps
from wecfl.bilevel.representation.from_models import is_projected
from wecfl.bilevel.smoothness import largest_curvature, logistic_bound
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Real
from wecfl.runs.json_values import json_number

__all__ = ["GRADIENT_DRAWS", "Diagnostics"]

GRADIENT_DRAWS = 4
"""The number of mini-batch gradients of each client in a round, for U and σ²."""


@final
class Diagnostics:
    """Watches a run (the first of a soft vote), and measures B, U, σ², β and the bounds.

    In each round, every client computes three full gradients: at the model before the local steps
    (q = 0), after them (q = Q), and at a probe for β. It also computes `GRADIENT_DRAWS` mini-batch
    gradients, unless one batch holds all data of every client. U, σ² and β are the largest values
    so far; the bounds of a round need only the U of that round (`U_round`).

    β begins with power iteration at the common start, and each round adds a probe along the change
    of the gradient. With `logistic`, the model is logistic regression: then β is a bound for all
    models, and no probe is needed.

    If a run is resumed, `last` is the record of the round that ended with `state`.
    """

    def __init__(
        self,
        setting: Setting,
        state: State,
        last: Mapping[str, Any] | None = None,
        *,
        logistic: bool = False,
    ) -> None:
        self._setting, self._logistic = setting, logistic
        self._importance = setting.method.importance(setting.engine.sizes)
        self._constants = {
            name: last["theory"][name] if last else 0.0 for name in ("U", "sigma2", "beta")
        }
        # At the common start no client has moved.
        self._gap = np.array(last["clients"]["gap"]) if last else np.zeros(len(state.labels))
        self._found: dict[str, Any] = {}
        self._clients: dict[str, list[float | None] | None] = {}
        self._previous = self._trained = state
        self._path_U = 0.0
        self._clear()
        self._begin(state)
        if not last:
            self._see(beta=self._first_beta(state))

    def _first_beta(self, state: State) -> float:
        """β before the first round."""
        engine, slope = self._setting.engine, self._started_slope
        if self._logistic:
            return logistic_bound(engine, len(state.labels))
        return largest_curvature(engine, state.models, slope, slope)

    def step(self, step: str, state: State, seconds: float) -> None:
        """Called after each step (an `Observer` of `rounds.iterate`)."""
        began = perf_counter()
        if step == "L":
            self._trained, self._trained_slope = state, self._gradients(state)
            self._path_U = max(self._path_U, bounds.gradient_bound(self._trained_slope[None]))
            self._see_secants(self._started, self._started_slope)
            self._probe_curvature()
        elif step == "D":
            self._close(self._previous, state)
        self._previous = state
        self._seconds += perf_counter() - began

    def round(self) -> tuple[dict[str, Any], dict[str, list[float | None] | None], float]:
        """B and `theory` of the round's record, the learning rates of clients, and the seconds."""
        measured, clients, seconds = self._found, self._clients, self._seconds
        self._clear()
        return measured, clients, seconds

    def _clear(self) -> None:
        self._curvature = np.nan
        self._seconds = 0.0

    def _begin(self, state: State) -> None:
        """Measure what can be measured before the local steps."""
        self._started, self._started_slope = state, self._gradients(state)
        sampled = self._sampled(state)
        self._see(sigma2=bounds.gradient_variance(sampled, self._started_slope))
        self._path_U = bounds.gradient_bound(sampled)  # U of the local steps that follow

    def _close(self, before: State, state: State) -> None:
        """Measure the rest after the models are sent, and begin the next round."""
        started, slopes = self._started, (self._started_slope, self._trained_slope)
        lr = np.broadcast_to(self._setting.rates(started), len(state.labels))
        gap, squares = self._gap, [bounds.squared_norms(slope) for slope in slopes]
        path_U = self._path_U
        self._begin(state)
        U = max(path_U, self._path_U)
        self._see(U=U)
        self._see_secants(state, self._started_slope)
        method = self._setting.method
        models_only = method.distance is squared_euclidean
        # The bound is about the length of a step, which a projection does not keep exactly.
        bounded = models_only and not is_projected(method.representation)
        if models_only:
            self._gap = gaps(before, method, self._setting.engine, self._setting.seed)
        k, labels, share = len(state.centers), before.labels, self._importance
        B = [bounds.clusterability(slope, labels, share, k) for slope in slopes]
        worst: F64 = np.maximum(*B)[labels]
        smallest: F64 = np.minimum(*squares)
        steps = self._setting.plan.steps
        sigma2, beta = self._constants["sigma2"], self._constants["beta"]
        moved = np.linalg.norm(self._parameters(before.models - before.own_centers), axis=1)
        now = bounds.squared_norms(self._started_slope)
        together = all(len(np.unique(started.labels[labels == c])) == 1 for c in np.unique(labels))
        self._clients = {
            "lr": _plain(lr),
            "lr_bound_1": _plain(bounds.lr_bound_1(gap, steps, path_U)) if bounded else None,
            "lr_bound_2": _plain(bounds.lr_bound_2(smallest, worst, U, sigma2, beta)),
            "gap": _plain(self._gap),
        }
        self._found = {
            "B": {"0": _plain(B[0]), "Q": _plain(B[1])},
            "theory": {
                **self._constants,
                "U_round": U,
                "curvature": json_number(self._curvature),
                "gradient": {
                    "0": float(np.average(squares[0], weights=share)),
                    "Q": float(np.average(squares[1], weights=share)),
                },
                "lemma_4": bounds.drift_bound(worst, share, float(lr.max()), steps, U),
                "convexity": bounds.convexity_bound(now, moved, share),
                "lemma_5": bounds.descent_bound(
                    smallest, share, lr, steps=steps, beta=beta, sigma2=sigma2
                ),
                "together": together,
            },
        }

    def _see(self, **values: float) -> None:
        for name, value in values.items():
            self._constants[name] = max(self._constants[name], value)

    def _see_secants(self, state: State, slope: F32) -> None:
        """Update β and the smallest curvature, between the trained models and those of `state`."""
        smooth, curved = bounds.secants(
            self._parameters(self._trained.models), self._trained_slope,
            self._parameters(state.models), slope,
        )  # fmt: skip
        self._see(beta=float(np.fmax.reduce(smooth, initial=0.0)))
        self._curvature = float(np.fmin.reduce(curved, initial=self._curvature))

    def _probe_curvature(self) -> None:
        """Update β at the models before the local steps, along the change of the gradient.

        This change is about the Hessian times the change of the model, so it is a step of power
        iteration. If the model moved far, into a flat region, the secant is small; but the probe is
        short.
        """
        if not self._logistic:
            turn = self._trained_slope - self._started_slope
            self._see(
                beta=largest_curvature(
                    self._setting.engine, self._started.models, self._started_slope, turn, probes=1
                )
            )

    def _gradients(self, state: State) -> F32:
        return gradients(self._setting.engine, state.models)

    def _sampled(self, state: State) -> F32:
        """(draws, m, trainable), mini-batch gradients; full gradients if a batch holds all data."""
        engine, seed = self._setting.engine, self._setting.seed
        if self._setting.plan.batch >= engine.sizes.max():
            return self._started_slope[None]
        seeds = [
            rng.derive(seed, "diagnostics", state.round, draw) for draw in range(GRADIENT_DRAWS)
        ]
        draws = [
            gradients(engine, state.models, batches=1, seed=seed, round=state.round)
            for seed in seeds
        ]
        return np.stack(draws)

    def _parameters(self, rows: F32) -> F32:
        return rows[:, : self._setting.engine.layout.trainable]


def _plain(values: Real) -> list[float | None]:
    return [json_number(value) for value in values]
