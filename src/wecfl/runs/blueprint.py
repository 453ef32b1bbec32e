"""What it takes to build the models of a run again, beside their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wecfl.core.clients import Clients
from wecfl.models import Model, Module, auto, build

__all__ = ["Blueprint"]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What it takes to build the models of a run again, beside their tensors.

    >>> Blueprint.read(Blueprint("mlp", (1, 8, 8), 10).written())
    Blueprint(model='mlp', shape=(1, 8, 8), classes=10)
    """

    model: str
    """A name of `wecfl.models.MODELS`, or the class of a module of the user's own."""
    shape: tuple[int, ...]
    """Of a sample."""
    classes: int

    @classmethod
    def of(cls, model: Model, module: Module, federation: Clients) -> Blueprint:
        """Of the module that was made for a federation."""
        name = model if isinstance(model, str) else type(module).__name__
        name = auto(federation.shape) if name == "auto" else name
        return cls(name, federation.shape, federation.classes)

    def written(self) -> dict[str, str]:
        """As metadata of a safetensors file."""
        shape = " ".join(map(str, self.shape))
        return {"model": self.model, "shape": shape, "classes": str(self.classes)}

    @classmethod
    def read(cls, about: Mapping[str, str]) -> Blueprint:
        """From such metadata."""
        shape, classes = tuple(map(int, about["shape"].split())), int(about["classes"])
        if min(*shape, classes) < 1:
            raise ValueError(f"no model takes samples of shape {shape} and gives {classes} classes")
        return cls(about["model"], shape, classes)

    def build(self, seed: int = 0) -> Module:
        """A module of this kind, as a run with this seed begins with it."""
        return build(self.model, shape=self.shape, classes=self.classes, seed=seed)
