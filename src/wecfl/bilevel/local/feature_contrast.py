"""The program of MOON: features that stay near those of the common model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, PERSONAL_FIELD, kept, momentum_field
from wecfl.core.plan import FeatureTerm, LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.types import F32, Table
from wecfl.errors import ModelError
from wecfl.layout import Layout
from wecfl.limits import check_not_negative, check_positive

__all__ = ["ContrastSteps"]

MIN_LENGTH = 1e-12
"""Features that are shorter have no direction. torch has the same limit."""


@dataclass(frozen=True, slots=True)
class ContrastSteps:
    """Train the model received, with features that differ from those of the client's last model.

    Let z be the features of a sample, z_r its features in the model received, and z_p those in the
    client's model after its previous update. The loss of the sample gets the term (Li, He, Song:
    *Model-Contrastive Federated Learning*, CVPR 2021)

        −c·log( exp(cos(z, z_r)/T) / (exp(cos(z, z_r)/T) + exp(cos(z, z_p)/T)) ),

    which is c·log(1 + exp(⟨z/‖z‖, p⟩)) with p = (z_p/‖z_p‖ − z_r/‖z_r‖)/T. `contrast` is c,
    which the authors call μ, and `temperature` is T. At the first contact z_p = z_r, and the term
    has no gradient.

    >>> list(ContrastSteps().keeps(LocalPlan(momentum=0.0)))
    ['previous']
    """

    contrast: float = 1.0
    temperature: float = 0.5
    name: ClassVar[str] = "contrast-steps"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_not_negative(contrast=self.contrast)
        check_positive(temperature=self.temperature)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The model after the previous update, and the momentum buffer."""
        return {"previous": PERSONAL_FIELD, **momentum_field(plan)}

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error unless the model has features."""
        if layout.head == (0, 0) or all("classifier" in entry.tags for entry in layout.entries):
            raise ModelError(
                "MOON compares features, the inputs of a last linear layer after other layers, and "
                "this model has none: choose a model with more layers"
            )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Compute the features of the model received and of the previous one, and train."""
        rows = sent.own["model"]
        received, previous = (
            _directions(site.features(models)) for models in (rows, memory["previous"])
        )
        points = (previous - received) / np.float32(self.temperature)
        term = FeatureTerm("contrast", points, np.full(len(points), self.contrast, np.float32))
        rows, velocity = site.train(
            rows, plan, velocity=memory.get("momentum"), term=term, out=rows
        )
        return {"model": rows}, kept(memory, previous=rows.copy(), momentum=velocity)


def _directions(features: F32) -> F32:
    """(N, D), z/‖z‖."""
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features))
    return np.asarray(features / np.maximum(lengths, np.float32(MIN_LENGTH))[:, None], np.float32)
