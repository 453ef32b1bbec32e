"""Unpacks the rows of a pool before a model's `forward` (see `wecfl.data.packing`)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wecfl.data.packing import Part
from wecfl.errors import ModelError

__all__ = ["Unpack", "reads_parts", "typed", "unpacked_parts", "unpacking"]


@dataclass(frozen=True, slots=True)
class Unpack:
    """A hook of torch, which makes the arguments of `forward` from one tensor of rows.

    Several arguments, and tensors of whole numbers, are passed on unchanged.
    """

    parts: tuple[Part, ...]

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The positional and the keyword arguments; None: they stay unchanged."""
        if kwargs or len(args) != 1 or not args[0].is_floating_point():
            return None
        rows: Tensor = args[0]
        if len(self.parts) == 1:
            return (typed(rows, self.parts[0]),), kwargs
        pieces = torch.split(rows, [part.width for part in self.parts], dim=-1)
        shaped = [
            typed(piece.reshape(*rows.shape[:-1], *part.shape), part)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]
        names = [part.name for part in self.parts]
        if any(names):
            return (), dict(zip(names, shaped, strict=True))
        return tuple(shaped), kwargs


def unpacking(module: nn.Module, parts: Sequence[Part], name: str | None) -> nn.Module:
    """A copy of the module that takes such rows; the module, if samples are one array of numbers.

    Whole numbers stay whole for a module that has an embedding. `name` is the name of a model of
    the library, which takes one array; None for other models.
    """
    if len(parts) > 1 and name:
        raise ModelError(
            f"the model {name} takes one array, but samples have {len(parts)} arrays: give a "
            "module of your own, whose forward takes them"
        )
    if not reads_parts(module, parts):
        return module
    copy = deepcopy(module)
    copy.register_forward_pre_hook(Unpack(tuple(parts)), with_kwargs=True)
    return copy


def reads_parts(module: nn.Module, parts: Sequence[Part]) -> bool:
    """Whether the module needs these parts, and not one array of float32.

    >>> reads_parts(nn.Linear(3, 1), [Part("", (3,), "whole")])
    False
    """
    embeds = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())
    return bool(parts) and (len(parts) > 1 or bool(parts[0].name) or embeds)


def unpacked_parts(module: nn.Module) -> tuple[Part, ...]:
    """The parts into which a module unpacks rows; empty: it does not unpack them.

    >>> unpacked_parts(nn.Linear(2, 1))
    ()
    >>> unpacked_parts(unpacking(nn.Embedding(2, 1), [Part("", (3,), "whole")], None))
    (Part(name='', shape=(3,), kind='whole'),)
    """
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Unpack)]
    return hooks[0].parts if hooks else ()


def typed(tensor: Tensor, part: Part) -> Tensor:
    """The numbers in the type of the part: float32, int64 or bool."""
    if part.kind == "number":
        return tensor
    return tensor.to(torch.int64 if part.kind == "whole" else torch.bool)
