"""A pull of every client towards the mean of all clients, whatever its cluster.

The authors' published script (May 2022) trains its clustered methods on

    L(ω, D_i) + μ/2·‖ω − ω̄‖²,   ω̄ = Σ_i λ_i ω_i / Σ_i λ_i,

with μ = 0.95, where ω_i is the model with which client i starts the round. The paper does not
mention it. `docs/evidence/ablations.md` says what it changes.
"""

from __future__ import annotations

import numpy as np

from wecfl.core.ask import Ask
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Table

__all__ = ["PULLED_UPDATE", "mean_of_all"]


def mean_of_all(state: State, setting: Setting) -> Table:
    """(m, P), the λ-weighted mean of the models that clients are sent, repeated for each client.

    >>> from types import SimpleNamespace
    >>> state = State(1, None, np.array([[0.0], [4.0]], np.float32), labels=np.array([0, 0, 1]))
    >>> setting = SimpleNamespace(importance=np.array([1.0, 1.0, 2.0]))
    >>> mean_of_all(state, setting)["anchor"].tolist()
    [[2.0], [2.0], [2.0]]
    """
    weight = np.bincount(state.labels, setting.importance, len(state.centers))
    mean = ((weight / weight.sum()) @ state.centers).astype(np.float32)
    return {"anchor": np.broadcast_to(mean, (len(state.labels), len(mean)))}


PULLED_UPDATE = Ask(send=mean_of_all)
"""A local update in which the mean of all clients takes the place of Ω_k in the pull of `Train`."""
