"""A new method is a value: change one component, keep the four steps."""

from dataclasses import dataclass

import numpy as np

import wecfl
from wecfl.core.state import State
from wecfl.layout import Layout

partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=5)
fed = wecfl.Federation.from_dataset("digits", partition, clients=20, seed=0)


# 1. An objective: a pull towards the cluster's model that grows with the rounds.
@dataclass(frozen=True)
class Tightening:
    """L(ω, D_i) + mu_t/2·‖ω − Ω_k‖² with mu_t = rate·t."""

    rate: float

    def __call__(self, state: State, layout: Layout) -> wecfl.Correction:
        """The gradient gains mu_t·(ω − Ω_k)."""
        return wecfl.Correction(mu=self.rate * state.round)


tightening = wecfl.methods.wecfl(k=5).replace(name="tightening", objective=Tightening(0.05))

# 2. Another λ: clients count by the square root of their data.
gentle = wecfl.methods.wecfl(k=5).replace(name="gentle", importance=np.sqrt)

# 3. FedPer: the last layer (tensors "3.weight", "3.bias" of the MLP) never leaves a client.
fedper = wecfl.methods.fedavg.replace(name="fedper", shared="~3.*")

for method in (wecfl.methods.fedavg, fedper, wecfl.methods.wecfl(k=5), tightening, gentle):
    result = wecfl.run(fed, method, rounds=15, plan=wecfl.Plan(lr=0.005), seed=0)
    last = result.summary
    print(f"{method.name:<11} accuracy {last['accuracy']:.3f}  ARI {last['ari']:.2f}")
