"""From a module to the chain of layers the native kernels know."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from wecfl.errors import WecflError
from wecfl.layout import Layout

__all__ = ["Unsupported", "chain"]

Layer = dict[str, Any]
FLATTEN: Layer = {"kind": "flatten"}
PLAIN = {
    "dilation": 1,
    "ceil_mode": False,
    "return_indices": False,
    "count_include_pad": True,
    "divisor_override": None,
}
"""What the options of a pooling function must be."""


class Unsupported(WecflError):  # noqa: N818
    """The native engine can't run this model; the message says which layer is the reason."""


def chain(model: nn.Module, layout: Layout, shape: Sequence[int], classes: int) -> list[Layer]:
    """The layers of a module that is a chain of known ones, for samples of this shape.

    >>> from wecfl.models import layout_of
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [layer["kind"] for layer in chain(net, layout_of(net), (1, 2, 2), 2)]
    ['linear', 'relu', 'linear']
    """
    columns = {entry.name: entry.start for entry in layout.entries}
    if any("frozen" in entry.tags for entry in layout.entries):
        raise Unsupported("the model has frozen parameters")
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        raise Unsupported("two layers share a parameter")
    layers = [layer for layer in _traced(model, columns) if layer]
    return _checked(layers, tuple(shape), classes)


def _traced(model: nn.Module, columns: dict[str, int]) -> list[Layer]:
    if type(model) is nn.Linear:  # traced, it would fall apart into its own pieces
        return [_of_module("", model, columns)]
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception as error:
        line = " ".join(str(error).split())
        raise Unsupported(f"torch.fx can't trace {type(model).__name__} ({line})") from None
    parts = dict(model.named_modules())
    layers: list[Layer] = []
    current: fx.Node | None = None
    seen: set[str] = set()
    for node in graph.nodes:
        if node.op == "placeholder" and current is None:
            current = node
        elif node.op == "output":
            if node.args != (current,):
                raise Unsupported("the model gives more than its logits")
        elif _measures(node):
            continue
        elif (
            current is None or not node.args or node.args[0] is not current or node.op == "get_attr"
        ):
            raise Unsupported(f"the model is not a chain of layers (at '{node.name}')")
        elif node.op == "call_module":
            part = parts[str(node.target)]
            if node.target in seen and next(part.parameters(), None) is not None:
                raise Unsupported(f"the layer '{node.target}' is used twice")
            seen.add(str(node.target))
            layers.append(_of_module(str(node.target), part, columns))
            current = node
        else:
            layers.append(_of_function(node))
            current = node
    return layers


def _measures(node: fx.Node) -> bool:
    """x.size(…), x.shape and items of it: only `view` and `reshape` read them."""
    sizes = node.op == "call_method" and node.target == "size"
    return sizes or node.target in (getattr, operator.getitem)


def _of_module(name: str, part: nn.Module, columns: dict[str, int]) -> Layer:
    at: Callable[[str], int] = lambda leaf: columns.get(f"{name}.{leaf}".lstrip("."), -1)  # noqa: E731
    said = f"the layer '{name}' ({type(part).__name__})"
    kind = type(part)
    if kind is nn.Conv2d:
        assert isinstance(part, nn.Conv2d)
        if part.groups != 1 or part.padding_mode != "zeros" or _one(part.dilation, said) != 1:
            raise Unsupported(f"{said} has groups, dilation or a padding other than zeros")
        return {
            "kind": "conv",
            **_window(part.kernel_size, part.stride, part.padding, said),
            "inputs": part.in_channels,
            "outputs": part.out_channels,
            "weight": at("weight"),
            "bias": at("bias"),
        }
    if kind is nn.BatchNorm2d:
        assert isinstance(part, nn.BatchNorm2d)
        if not part.track_running_stats or part.momentum is None:
            raise Unsupported(f"{said} keeps no running statistics, or cumulative ones")
        norm = {"eps": part.eps, "momentum": part.momentum}
        where = {"mean": at("running_mean"), "variance": at("running_var")}
        size = {"inputs": part.num_features}
        return {"kind": "norm", **size, "weight": at("weight"), "bias": at("bias"), **where, **norm}
    if kind is nn.Linear:
        assert isinstance(part, nn.Linear)
        size = {"inputs": part.in_features, "outputs": part.out_features}
        return {"kind": "linear", **size, "weight": at("weight"), "bias": at("bias")}
    if kind is nn.ReLU:
        return {"kind": "relu"}
    if kind is nn.MaxPool2d:
        assert isinstance(part, nn.MaxPool2d)
        if part.ceil_mode or part.return_indices or _one(part.dilation, said) != 1:
            raise Unsupported(f"{said} has dilation, ceil_mode or return_indices")
        return {"kind": "max_pool", **_window(part.kernel_size, part.stride, part.padding, said)}
    if kind is nn.AvgPool2d:
        assert isinstance(part, nn.AvgPool2d)
        window = _window(part.kernel_size, part.stride, part.padding, said)
        if (
            part.ceil_mode
            or part.divisor_override
            or not (part.count_include_pad or not window["pad"])
        ):
            raise Unsupported(f"{said} has ceil_mode, or counts other than its kernel")
        return {"kind": "avg_pool", **window}
    if kind is nn.Flatten:
        assert isinstance(part, nn.Flatten)
        if (part.start_dim, part.end_dim) != (1, -1):
            raise Unsupported(f"{said} flattens other than each sample")
        return FLATTEN
    if kind is nn.Dropout:
        assert isinstance(part, nn.Dropout)
        if not part.p < 1:
            raise Unsupported(f"{said} drops everything")
        return {"kind": "dropout", "rate": part.p}
    if kind is nn.Identity:
        return {}
    raise Unsupported(f"{said} is not one of those the native engine knows")


def _of_function(node: fx.Node) -> Layer:
    target, args, named = node.target, node.args[1:], dict(node.kwargs)
    said = f"the call of {getattr(target, '__name__', target)}"
    named.pop("inplace", None)
    if target in (torch.relu, functional.relu, "relu"):
        return {"kind": "relu"}
    if target in (torch.flatten, "flatten"):
        given = dict(zip(("start_dim", "end_dim"), args, strict=False)) | named
        if {"end_dim": -1, **given} == {"start_dim": 1, "end_dim": -1}:
            return FLATTEN
    if target in ("view", "reshape", torch.reshape):
        sizes = tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
        if len(sizes) == 2:
            return FLATTEN  # (batch, -1) or (-1, features); `_checked` compares the features
    if target in (functional.max_pool2d, torch.max_pool2d, functional.avg_pool2d):
        given = dict(zip(("kernel_size", "stride", "padding"), args, strict=False)) | named
        if all(given.pop(key, value) == value for key, value in PLAIN.items()) and len(given) <= 3:
            kernel = given["kernel_size"]
            kind = "avg_pool" if target is functional.avg_pool2d else "max_pool"
            stride, padding = given.get("stride") or kernel, given.get("padding", 0)
            return {"kind": kind, **_window(kernel, stride, padding, said)}
    raise Unsupported(f"{said} is not one of the operations the native engine knows")


def _window(kernel: Any, stride: Any, padding: Any, said: str) -> Layer:
    sizes = {"kernel": kernel, "stride": stride, "pad": padding}
    return {name: _one(value, said) for name, value in sizes.items()}


def _one(value: Any, said: str) -> int:
    values = set(value) if isinstance(value, tuple | list) else {value}
    if len(values) != 1 or not all(isinstance(v, int) for v in values):
        raise Unsupported(f"{said} is not square: {value}")
    return int(values.pop())


def _checked(layers: list[Layer], shape: tuple[int, ...], classes: int) -> list[Layer]:
    """Follow the shape of a sample through the chain; leave out what only renames it."""
    flat = len(shape) == 1
    c, h, w = (*shape, 1, 1)[:3] if len(shape) != 2 else (1, *shape)
    if len(shape) > 3:
        raise Unsupported(f"samples have {len(shape)} dimensions")
    image = len(shape) == 3
    result: list[Layer] = []
    for layer in layers:
        kind = layer["kind"]
        kept, expected = dict(layer), c
        if kind == "flatten":
            c, h, w, flat = prod((c, h, w)), 1, 1, True
            continue
        if kind == "linear":
            if not flat:
                raise Unsupported("a linear layer works on something other than flat samples")
            c, expected = layer["outputs"], c
        elif kind in ("conv", "norm", "max_pool", "avg_pool") and (flat or not image):
            raise Unsupported(f"a {kind} layer works on something other than images")
        if kept.pop("inputs", expected) != expected:
            raise Unsupported(f"a {kind} layer expects {layer['inputs']} inputs, not {expected}")
        if "kernel" in layer:
            if kind == "conv" and not _conv_fits(layer, h, w):
                raise Unsupported(
                    "a convolution has a kernel other than 1, 3, 5, 7, a stride above 2, a padding "
                    "as large as its kernel, or a stride of 2 on an odd and an even side"
                )
            if kind != "conv" and (layer["kernel"] > 15 or 2 * layer["pad"] > layer["kernel"]):
                raise Unsupported(f"a {kind} layer has a kernel of {layer['kernel']}")
            sides = [n + 2 * layer["pad"] - layer["kernel"] for n in (h, w)]
            if min(sides) < 0:
                raise Unsupported(f"a {kind} layer is larger than its input")
            h, w = (side // layer["stride"] + 1 for side in sides)
            c = layer.get("outputs", c)
        result.append(kept)
    if not result or result[-1]["kind"] != "linear" or c != classes:
        raise Unsupported("the last layer is not linear with one output per class")
    return result


def _conv_fits(layer: Layer, h: int, w: int) -> bool:
    kernel, stride, pad = layer["kernel"], layer["stride"], layer["pad"]
    even = stride == 1 or (h + 2 * pad - kernel) % stride == (w + 2 * pad - kernel) % stride
    return kernel in (1, 3, 5, 7) and stride in (1, 2) and pad < kernel and even
