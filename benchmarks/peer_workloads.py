"""What `peers.py` lets all libraries train: models, and the samples of each client.

A module of its own, since Flower's actors look it up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from torch import nn
from torch.utils.data import TensorDataset

from architectures import ARCHITECTURES
from common import SETTINGS, module_of, random_clients, training_sets
from wecfl import Federation


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: a model, and what each client trains on."""

    build: Callable[[], nn.Module]
    sets: Sequence[TensorDataset]
    fed: Federation
    native: nn.Module
    """The model for samples as the federation holds them."""
    classes: int


@cache
def workload(model: str, m: int) -> Workload:
    """The work of m clients with the model of that name in `MODELS`."""
    for setting in SETTINGS:
        if setting.model == model:
            build, fed = partial(module_of, setting), random_clients(setting, m)
            return Workload(build, training_sets(setting, m), fed, build(), 10)
    chosen = next(each for each in ARCHITECTURES if each.title == MODELS[model])
    fed, sets = chosen.clients(m)
    return Workload(chosen.build, sets, fed, chosen.module(), chosen.classes)


MODELS = {setting.model: setting.title for setting in SETTINGS} | {
    "resnet-8": "ResNet-8, GroupNorm, batch 32",
    "gru": "GRU of 128 on 80 characters, batch 32",
}
"""Name ↦ title."""
