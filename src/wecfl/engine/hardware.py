"""The processors and devices of this machine that torch can use, and their particular settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from wecfl.errors import ConfigError

__all__ = ["DEVICES", "PRECISIONS", "chosen_device", "cores", "full_precision", "generator_of"]

DEVICES = ("auto", "cpu", "cuda", "mps")
"""The choices of `chosen_device`."""
PRECISIONS = ("float32", "bfloat16")
"""The numbers with which a forward pass computes; parameters and steps are always float32."""


def cores() -> int:
    """The number of processors that this process may use.

    >>> cores() >= 1
    True
    """
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def chosen_device(name: str, engine: str = "auto", precision: str = "float32") -> str:
    """The device that an engine uses; ``auto`` is the best one of this machine that it can use.

    >>> chosen_device("cpu"), chosen_device("auto", "native")
    ('cpu', 'cpu')
    >>> chosen_device("gpu")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: device must be one of auto, cpu, cuda, mps, got 'gpu'
    """
    if name not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}, got '{name}'")
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, got '{precision}'")
    usable: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available,
    }  # fmt: skip
    bound = engine in ("native", "ray")
    if name == "auto":
        found = [] if bound else [device for device, there in usable.items() if there()]
        chosen = [*found, "cpu"][0]
    elif name != "cpu" and bound:
        raise ConfigError(
            f"engine {engine} computes on the CPU, but device is {name}: set engine to torch, or "
            f"device to cpu"
        )
    elif name != "cpu" and not usable[name]():
        raise ConfigError(
            f"device {name} is not available, since torch {torch.__version__} does not find it: "
            f"set device to auto or cpu, or install a torch that is built for it"
        )
    else:
        chosen = name
    if chosen == "cpu" and precision != "float32":
        raise ConfigError(
            f"precision {precision} needs a GPU, but the device is cpu: set precision to float32"
        )
    return chosen


def generator_of(device: torch.device) -> torch.Generator:
    """The generator from which layers like Dropout draw on this device."""
    if device.type == "cuda":
        index = device.index or 0
        torch.cuda.get_rng_state(index)  # this makes the generators
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which CUDA computes in real float32, and always by the same algorithms."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
