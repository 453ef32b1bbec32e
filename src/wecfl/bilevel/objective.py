"""What a client minimizes beside its data loss, as an affine correction of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from wecfl.core.plan import Correction
from wecfl.core.state import State
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["Proximal", "empirical"]


def empirical(state: State, layout: Layout) -> Correction:
    """The data loss alone, L(ω, D_i): no correction.

    >>> empirical.__name__
    'empirical'
    """
    return Correction()


@dataclass(frozen=True, slots=True)
class Proximal:
    """FedProx: L(ω, D_i) + mu/2·‖ω − Ω_k‖², whose gradient adds mu·(ω − Ω_k).

    The paper writes "λ = 0.95" for mu. Li et al., *Federated Optimization in Heterogeneous
    Networks*, MLSys 2020.

    >>> Proximal(0.95)
    Proximal(mu=0.95)
    """

    mu: float

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ConfigError(f"mu must not be negative, got {self.mu}")

    def __call__(self, state: State, layout: Layout) -> Correction:
        """Tether each client to the model it received."""
        return Correction(mu=self.mu)
