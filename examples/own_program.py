"""Write your own client program: here, a pull towards the cluster that grows with the rounds.

Over a network, server and clients must both call `wecfl.bilevel.programs.register(Tightening)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import wecfl
from wecfl import methods
from wecfl.bilevel.local import Train
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.layout import Layout

partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=5)
fed = wecfl.Federation.from_dataset("digits", partition, clients=20, seed=0)


@dataclass(frozen=True, slots=True)
class Tightening:
    """L(ω, D_i) + mu_t/2·‖ω − Ω_k‖² with mu_t = rate·t."""

    rate: float
    name: ClassVar[str] = "tightening"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = Train.replies

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return Train().keeps(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Every plan and every model fits."""

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train with gradients to which mu_t·(ω − Ω_k) is added."""
        pull = Correction(mu=self.rate * site.round)
        rows, velocity = site.train(
            sent.own["model"], plan, correction=pull, velocity=memory.get("momentum")
        )
        return {"model": rows}, {} if velocity is None else {"momentum": velocity}


tightening = methods.wecfl(k=5).replace(name="tightening", local=Tightening(0.05))
result = wecfl.run(fed, tightening, rounds=15, plan=wecfl.Plan(lr=0.005), seed=0)
print(f"accuracy {result.summary['accuracy']:.3f}  ARI {result.summary['ari']:.2f}")
