"""Engines train and evaluate the clients. All follow one protocol (`wecfl.core.engine.Engine`).

Their numbers agree up to rounding. `make_engine` chooses one: the native engine if it knows every
layer of the model, otherwise torch.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from wecfl.data.federation import Federation
from wecfl.engine.device import DeviceEngine
from wecfl.engine.hardware import chosen_device
from wecfl.engine.local import BaseEngine, LocalEngine
from wecfl.engine.native import NativeEngine, Unsupported
from wecfl.engine.ray import RayEngine
from wecfl.engine.torch import TorchEngine
from wecfl.errors import ConfigError, EngineError
from wecfl.printing import log

__all__ = [
    "ENGINES",
    "BaseEngine",
    "DeviceEngine",
    "LocalEngine",
    "NativeEngine",
    "RayEngine",
    "TorchEngine",
    "check_engine",
    "local",
    "make_engine",
]

ENGINES = ("auto", "native", "torch", "ray")
"""The choices of `make_engine`."""


def local(choice: object) -> Literal["auto", "native", "torch"]:
    """The engine to use in place of `choice` for a few clients on this machine.

    >>> local("torch"), local("ray")
    ('torch', 'auto')
    """
    if choice == "native":
        return "native"
    return "torch" if choice == "torch" else "auto"


def check_engine(
    choice: str,
    clients: object,
    device: str = "cpu",
    precision: str = "float32",
    needs: frozenset[str] = frozenset(),
) -> str:
    """The device that an engine uses; an error for a choice that is not possible.

    `needs` is what the engine must offer (`wecfl.core.method.Method.needs`).
    """
    if choice not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(ENGINES)}, got '{choice}'")
    if not isinstance(clients, Federation):
        raise ConfigError(
            f"engine {choice} needs the clients' data, in a Federation, got {clients!r}"
        )
    if choice == "native" and (missing := needs - NativeEngine.offers):
        raise ConfigError(
            f"the method needs the {', '.join(sorted(missing))} of models, which the native engine "
            f"can't compute: set engine to torch or auto"
        )
    return chosen_device(device, choice, precision)


def make_engine(
    choice: Literal["auto", "native", "torch", "ray"],
    federation: Federation,
    model: nn.Module,
    *,
    device: str = "cpu",
    precision: str = "float32",
    needs: frozenset[str] = frozenset(),
    **options: Any,
) -> BaseEngine:
    """The engine of that name; ``auto`` is native, or torch with a line in the log that says why.

    It is always torch on a `device` other than the CPU, and if the native engine does not offer
    what a method `needs`. The other options are those of the engine.

    >>> from torch import nn
    >>> import numpy as np
    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> with make_engine("torch", fed, nn.Linear(4, 4), workers=1) as engine:
    ...     engine.name
    'torch'
    """
    place = check_engine(choice, federation, device, precision, needs)
    if place != "cpu":
        return DeviceEngine(federation, model, device=place, precision=precision, **options)
    if missing := needs - NativeEngine.offers:
        if choice == "ray":
            return RayEngine(federation, model, inside="torch", **options)
        if choice == "auto":
            names = ", ".join(sorted(missing))
            log.info("wecfl: running on the torch engine: the native one can't compute %s", names)
        return TorchEngine(federation, model, **options)
    if choice == "ray":
        return RayEngine(federation, model, **options)
    if choice != "torch":
        try:
            return NativeEngine(federation, model, **options)
        except Unsupported as reason:
            if choice == "native":
                raise EngineError(f"{reason}; set engine to torch or auto") from None
            log.warning("wecfl: running on the torch engine: %s", reason)
    return TorchEngine(federation, model, **options)
