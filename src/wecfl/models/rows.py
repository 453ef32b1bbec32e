"""Turns any `nn.Module` into the row that its `Layout` describes, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import RLock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wecfl import rng
from wecfl.core.types import F32
from wecfl.errors import ModelError
from wecfl.layout import Layout

__all__ = [
    "fill",
    "keyed",
    "layout_of",
    "named_tensors",
    "one_at_a_time",
    "outputs_of",
    "reinitialized",
    "row_of",
]

BLOCK_OF_SAMPLES = 1024
"""The number of samples that a module predicts at once, so that activations stay small."""

one_at_a_time = RLock()
"""The lock of the thread that computes with torch, or draws from torch's only random generator. A
fork waits for it, so that the child process finds nothing half done."""


def _after_fork() -> None:
    """Use one thread in the child: if OpenMP has used threads, it would hang with more than one."""
    torch.set_num_threads(1)
    one_at_a_time.release()


os.register_at_fork(
    before=one_at_a_time.acquire,
    after_in_child=_after_fork,
    after_in_parent=one_at_a_time.release,
)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a row: the parameters, then the floating-point buffers (BatchNorm statistics).

    Buffers of whole numbers (BatchNorm's batch counter) are not part of a row.
    """
    yield from module.named_parameters()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def layout_of(module: nn.Module) -> Layout:
    """Which columns of a row hold which tensor of the module.

    >>> layout = layout_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    >>> layout.width, layout.columns("head"), layout.columns("linear")
    (23, slice(15, 21, None), slice(0, 23, None))
    """
    linears = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError(
            f"{type(module).__name__} has no parameters to train: choose a model that has some"
        )
    tensors = []
    for name, tensor in named_tensors(module):
        if is_lazy(tensor):
            raise ModelError(
                f"the tensor '{name}' has no shape yet: call the module with a sample before the "
                f"run"
            )
        if tensor.dtype != torch.float32:
            raise ModelError(
                f"the tensor '{name}' is {tensor.dtype}, expected float32: call module.float()"
            )
        owner, _, leaf = name.rpartition(".")
        tags = []
        if name not in parameters:
            tags.append("statistics")
        elif not tensor.requires_grad:
            tags.append("frozen")
        if owner in linears:
            tags.append("linear")
            if owner == linears[-1]:
                tags.append("classifier")
                if leaf == "weight":
                    tags.append("head")
        tensors.append((name, tuple(tensor.shape), tags))
    return Layout.of(tensors)


def row_of(module: nn.Module) -> F32:
    """(P,), the module's tensors as one row.

    >>> row_of(nn.Linear(2, 1)).shape
    (3,)
    """
    layout, tensors = layout_of(module), dict(named_tensors(module))
    flat = [tensors[entry.name].detach().reshape(-1).cpu() for entry in layout.entries]
    return np.asarray(torch.cat(flat).numpy(), dtype=np.float32)


def fill(module: nn.Module, row: F32) -> nn.Module:
    """A copy of the module that holds the row, in evaluation mode.

    >>> fill(nn.Linear(1, 1), np.array([2.0, 1.0], np.float32))(torch.ones(1)).item()
    3.0
    """
    copy = deepcopy(module)
    layout = layout_of(copy)
    if np.shape(row) != (layout.width,):
        raise ModelError(
            f"{type(module).__name__} needs a row of shape ({layout.width},), got {np.shape(row)}"
        )
    tensors = layout.tensors(row)
    with torch.no_grad():
        for name, tensor in named_tensors(copy):
            tensor.copy_(torch.from_numpy(tensors[name].copy()))
    return copy.eval()


def outputs_of(module: nn.Module, x: F32) -> F32:
    """(n, …), the outputs of a module in evaluation mode for n samples.

    >>> outputs_of(fill(nn.Linear(1, 1), np.array([2.0, 1.0], np.float32)), np.ones((2, 1), "f4"))
    array([[3.], [3.]], dtype=float32)
    """
    blocks = [x[i : i + BLOCK_OF_SAMPLES] for i in range(0, max(len(x), 1), BLOCK_OF_SAMPLES)]
    try:
        with torch.inference_mode():
            given = [module(torch.from_numpy(np.ascontiguousarray(block))) for block in blocks]
    except Exception as error:  # whatever the user's own forward raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"{type(module).__name__} can't use these samples: {reason}") from error
    return np.asarray(torch.cat(given).numpy(), np.float32)


@contextmanager
def keyed(seed: int, which: int = 0) -> Iterator[None]:
    """A context in which torch's random numbers follow from (seed, which) alone.

    Afterwards torch's random state is what it was before. Other threads wait for the end of the
    context.

    >>> with keyed(0): a = torch.rand(1)
    >>> with keyed(0): b = torch.rand(1)
    >>> torch.equal(a, b)
    True
    """
    with one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.derive(seed, "init", client=which))
        yield


def reinitialized(module: nn.Module, seed: int, which: int) -> nn.Module:
    """A copy whose parts have drawn new parameters for (seed, which), by `reset_parameters`.

    >>> a, b = (reinitialized(nn.Linear(2, 1), seed=0, which=3) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    copy = deepcopy(module)
    with keyed(seed, which):
        for name, part in copy.named_modules():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
            elif next(part.parameters(recurse=False), None) is not None:
                raise ModelError(
                    f"'{name or type(part).__name__}' has parameters but no reset_parameters(), so "
                    f"a second initial model can't be drawn: add this method to it"
                )
    return copy
