"""β, the largest curvature of the losses: an estimate near given models, and a bound if known."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.bounds import secants
from wecfl.bilevel.evaluation import gradients
from wecfl.core.engine import Engine
from wecfl.core.types import F32, F64, Real

__all__ = ["PROBES", "largest_curvature", "logistic_bound"]

PROBES = 4
"""The number of gradient probes for β, the largest curvature."""
LOGISTIC_PROBES = 12
"""The number of probes for the bound of logistic regression, which is then right to one percent."""
PROBE_LENGTH = 1e-2
"""The length of a probe, relative to that of the model: short enough for the Hessian, and long
enough for float32."""


def largest_curvature(
    engine: Engine, models: F32, slope: Real, direction: Real, probes: int = PROBES
) -> float:
    """The largest curvature of a client's loss L(·, D_i) near its model (m, P), over all clients.

    This is power iteration from `direction` (m, trainable), in which a difference of gradients
    takes the place of the Hessian times a vector. `slope` (m, trainable) is the gradient at the
    models. Every probe gives an estimate from below, and the largest one is returned.

    >>> from types import SimpleNamespace
    >>> from wecfl import Layout
    >>> from wecfl.core.program import Answers
    >>> def ask(job, sent, who, memory):                # of L(w) = w_0²/2 + 2 w_1²
    ...     slope = sent.own["model"] * np.float32([1, 4])
    ...     return Answers({"gradient": slope}, np.zeros(1, np.int8))
    >>> engine = SimpleNamespace(layout=Layout.of([("w", (2,), [])]), ask=ask)
    >>> model = np.array([[1, 1]], np.float32)
    >>> round(largest_curvature(engine, model, model * [1, 4], model), 2)
    4.0
    """
    trainable = engine.layout.trainable
    parameters, slope = models[:, :trainable].astype(np.float64), slope.astype(np.float64)
    length = np.linalg.norm(parameters, axis=1, keepdims=True)
    reach = PROBE_LENGTH * np.where(length > 0, length, 1)
    beta = 0.0
    for _ in range(probes):
        norm = np.linalg.norm(direction, axis=1, keepdims=True)
        unit: F64 = np.divide(direction, norm, out=np.zeros_like(parameters), where=norm > 0)
        probe = models.copy()
        probe[:, :trainable] = parameters + reach * unit
        probe_slope = gradients(engine, probe.copy()).astype(np.float64)
        found, _curved = secants(probe[:, :trainable], probe_slope, parameters, slope)
        beta = max(beta, float(np.nanmax(found, initial=0.0)))
        direction = probe_slope - slope
    return beta


def logistic_bound(engine: Engine, m: int) -> float:
    """β of multinomial logistic regression at every model: ½ λ_max(mean of x xᵀ), over all clients.

    The Hessian is the mean of (diag(p) − p pᵀ) ⊗ x xᵀ, and no diag(p) − p pᵀ has an eigenvalue
    above ½ (Böhning, 1992). At w = 0 all C classes have p = 1/C, so that the largest eigenvalue of
    the Hessian is λ_max / C there. Power iteration finds it without seeing x.
    """
    zero = np.zeros((m, engine.layout.width), np.float32)
    slope = gradients(engine, zero.copy())
    at_zero = largest_curvature(engine, zero, slope, slope, LOGISTIC_PROBES)
    return engine.outputs / 2 * at_zero
