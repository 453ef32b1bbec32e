"""FedDANE: two exchanges in a round, first gradients, and then a local update corrected by them.

A first set of clients sends ∇L_i(Ω_k), and the server computes their mean g_k. A second set, which
is drawn independently, minimizes L(ω) + ⟨g_k − ∇L_i(Ω_k), ω − Ω_k⟩ + mu/2·‖ω − Ω_k‖² (Li et al.,
*FedDANE: A Federated Newton-Type Method*, 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.evaluating import Gradients
from wecfl.bilevel.local.training import MODEL_REPLY, Train, kept, momentum_field
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.ask import Ask
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, FitsAny, ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Table

__all__ = ["GRADIENTS", "NEWTON_UPDATE", "NewtonSteps", "learn_gradients", "mean_gradients"]


@dataclass(frozen=True, slots=True)
class NewtonSteps(FitsAny):
    """Q steps along ∇L(ω) + g − ∇L(Ω) + mu·(ω − Ω); Ω and g are sent by the server.

    The client computes ∇L(Ω) on all its data.

    >>> NewtonSteps(mu=0.1)
    NewtonSteps(mu=0.1)
    """

    mu: float = 0.001
    name: ClassVar[str] = "newton-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        Train(self.mu)  # checks mu

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return momentum_field(plan)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train the model that was sent; if g was not sent, as FedProx does."""
        rows, offset = sent.own["model"], None
        if "gradient" in sent.own:
            offset = np.array(sent.own["gradient"])
            offset[:, : site.layout.trainable] -= site.gradients(rows)
        rows, velocity = site.train(
            rows, plan, correction=Correction(self.mu, offset=offset),
            velocity=memory.get("momentum"), out=rows,
        )  # fmt: skip
        return {"model": rows}, kept(memory, momentum=velocity)


def learn_gradients(before: State, after: State, sent: Table, setting: Setting) -> State:
    """The state with the mean gradient of each cluster; nothing else changes.

    If no client of a cluster was heard, the cluster keeps its last mean gradient; if it has none,
    it gets the mean of all clients.
    """
    heard, (k, width) = after.heard, after.centers.shape
    known = replace(before, tick=after.tick, memory=after.memory)
    if after.replies is None or not heard.any():
        return known
    rows = np.zeros((int(heard.sum()), width), np.float32)
    rows[:, : setting.engine.layout.trainable] = after.replies["gradient"][heard]
    labels, weight = after.labels[heard], setting.importance[heard]
    with one_thread():
        means = cluster_means(rows, labels, weight, k).astype(np.float32)
        everyone = cluster_means(rows, np.zeros_like(labels), weight).astype(np.float32)
    unheard = ~np.isin(np.arange(k), labels)
    means[unheard] = before.cluster.get("gradient", np.repeat(everyone, k, axis=0))[unheard]
    return known.replace(cluster={**before.cluster, "gradient": means})


def mean_gradients(state: State, setting: Setting) -> Table:
    """(m, P), the mean gradient of each client's cluster."""
    if "gradient" not in state.cluster:
        return {}
    return {"gradient": state.cluster["gradient"][state.labels]}


GRADIENTS = Ask(Gradients(), learn=learn_gradients, who="gradients")
"""The first exchange of a round: gradients, from a set of clients that is drawn for it."""
NEWTON_UPDATE = Ask(send=mean_gradients)
"""The second exchange, which takes the place of "L"; its program is `NewtonSteps`."""
