"""The blueprint of a model: what is needed, in addition to its tensors, to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wecfl.core.clients import Clients
from wecfl.core.task import Task
from wecfl.models import Model, Module, auto, build
from wecfl.tasks import described, parsed
from wecfl.tasks.choice import for_outputs

__all__ = ["Blueprint"]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What is needed, in addition to their tensors, to build the models of a run again.

    >>> Blueprint.read(Blueprint("mlp", (1, 8, 8), 10).written())
    Blueprint(model='mlp', shape=(1, 8, 8), classes=10, task='classification(classes=10)')
    """

    model: str
    """A name of `wecfl.models.MODELS`, or the class of the user's own module."""
    shape: tuple[int, ...]
    """The shape of a sample; empty if it is not known, as over a network."""
    classes: int
    """The number of outputs of the model; for a classification, C."""
    task: str = ""
    """The task of the training; empty in early folders, which means a classification."""

    @classmethod
    def of(cls, model: Model, module: Module, federation: Clients, task: Task) -> Blueprint:
        """The blueprint of a module that was made for a federation."""
        name = model if isinstance(model, str) else type(module).__name__
        name = auto(federation.shape) if name == "auto" else name
        return cls(name, federation.shape, task.outputs, described(task))

    def written(self) -> dict[str, str]:
        """The metadata for a safetensors file."""
        shape = " ".join(map(str, self.shape))
        classes = str(self.classes)
        return {"model": self.model, "shape": shape, "classes": classes, "task": self._task_text}

    @classmethod
    def read(cls, about: Mapping[str, str]) -> Blueprint:
        """The blueprint from such metadata."""
        shape, classes = tuple(map(int, about["shape"].split())), int(about["classes"])
        if min((*shape, classes)) < 1:
            raise ValueError(
                f"a model needs a positive shape and number of classes, got {shape} and {classes}"
            )
        return cls(about["model"], shape, classes, about.get("task", ""))

    @property
    def _task_text(self) -> str:
        return self.task or f"classification(classes={self.classes})"

    @property
    def fitted_task(self) -> Task:
        """The task for which the model was trained."""
        return for_outputs(parsed(self._task_text), self.classes)

    def build(self, seed: int = 0) -> Module:
        """A module of this kind, with the parameters at the beginning of a run with this seed."""
        return build(self.model, shape=self.shape, classes=self.classes, seed=seed)
