"""Translates a module into the flat list of layers that the native kernels run.

Which sizes and shapes the kernels can run is decided by `native/planner.cpp`. This file refuses
only what a list of layers can't express: a model that is not a chain, an unknown kind of layer, or
an option that a layer of the list does not have.
"""

from __future__ import annotations

import operator
from copy import deepcopy
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from wecfl.errors import WecflError
from wecfl.layout import Layout

__all__ = ["Layer", "Unsupported", "chain"]

Layer = dict[str, Any]
"""The arguments of a `Layer` of the extension: its kind, its place in the model, plain numbers."""
POOLING_DEFAULTS = {
    "dilation": 1,
    "ceil_mode": False,
    "return_indices": False,
    "count_include_pad": True,
    "divisor_override": None,
}
"""Options of pooling functions that a layer of the list does not have; they must have these
values."""


class Unsupported(WecflError):  # noqa: N818
    """The native engine can't run this model; the message says which layer is the reason."""


def chain(model: nn.Module, layout: Layout) -> list[Layer]:
    """The layers that a module calls, one after the other.

    >>> from wecfl.models import layout_of
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [layer["kind"] for layer in chain(net, layout_of(net))]
    ['flatten', 'linear', 'relu', 'linear']
    """
    columns = {entry.name: entry.start for entry in layout.entries}
    if any("frozen" in entry.tags for entry in layout.entries):
        raise Unsupported("the model has frozen parameters")
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        raise Unsupported("two layers share a parameter")
    return [layer for layer in _traced(model, columns) if layer]


def _traced(model: nn.Module, columns: dict[str, int]) -> list[Layer]:
    """The calls that the model makes, each with the output of the one before it."""
    if type(model) is nn.Linear:  # tracing would take it apart
        return [_of_module("", model, columns)]
    try:
        graph = _graph(model)
    except Exception as error:
        one_line = " ".join(str(error).split())
        raise Unsupported(f"torch.fx can't trace {type(model).__name__} ({one_line})") from None
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


def _graph(model: nn.Module) -> fx.Graph:
    """What `torch.fx.symbolic_trace` records, without patching `nn.Module` while it does.

    That patch is seen by all threads of the process, and would break the models of other runs.
    """
    tracer = fx.Tracer()
    tracer.root, tracer.graph, tracer.tensor_attrs = deepcopy(model), fx.Graph(), {}
    for name, part in tracer.root.named_modules():
        if name and tracer.is_leaf_module(part, name):
            part.__class__ = _recorded(type(part), name, tracer)
    forward, arguments = tracer.create_args_for_root(type(tracer.root).forward, is_module=True)
    output = tracer.create_arg(forward(*arguments))
    tracer.create_node("output", "output", (output,), {})
    return tracer.graph


def _recorded(kind: type[nn.Module], name: str, tracer: fx.Tracer) -> type[nn.Module]:
    """A kind of layer that records its calls instead of computing something."""

    def call(_: nn.Module, *args: Any, **named: Any) -> fx.Proxy:
        return tracer.create_proxy("call_module", name, args, named)

    return type(kind.__name__, (kind,), {"__call__": call})


def _measures(node: fx.Node) -> bool:
    """Whether this is x.size(…), x.shape or an item of it, which only `view` and `reshape` use."""
    sizes = node.op == "call_method" and node.target == "size"
    return sizes or node.target in (getattr, operator.getitem)


def _of_module(name: str, part: nn.Module, columns: dict[str, int]) -> Layer:
    """The layer for a module of torch; empty if the module does nothing."""
    kind = type(part)
    place = f"the layer '{name}' ({kind.__name__})" if name else f"the model ({kind.__name__})"

    def column(leaf: str) -> int:
        """Where a parameter of the layer begins in the row; -1 if it has none of that name."""
        return columns.get(f"{name}.{leaf}".lstrip("."), -1)

    if kind is nn.Identity:
        return {}
    if kind is nn.Conv2d:
        assert isinstance(part, nn.Conv2d)
        if part.groups != 1 or part.padding_mode != "zeros" or _one(part.dilation, place) != 1:
            raise Unsupported(f"{place} has groups, dilation or a padding other than zeros")
        return {
            "kind": "conv",
            "place": place,
            **_window(part.kernel_size, part.stride, part.padding, place),
            "inputs": part.in_channels,
            "outputs": part.out_channels,
            "weight": column("weight"),
            "bias": column("bias"),
        }
    if kind is nn.BatchNorm2d:
        assert isinstance(part, nn.BatchNorm2d)
        if not part.track_running_stats or part.momentum is None:
            raise Unsupported(f"{place} keeps no running statistics, or cumulative ones")
        return {
            "kind": "norm",
            "place": place,
            "inputs": part.num_features,
            "weight": column("weight"),
            "bias": column("bias"),
            "mean": column("running_mean"),
            "variance": column("running_var"),
            "eps": part.eps,
            "momentum": part.momentum,
        }
    if kind is nn.Linear:
        assert isinstance(part, nn.Linear)
        return {
            "kind": "linear",
            "place": place,
            "inputs": part.in_features,
            "outputs": part.out_features,
            "weight": column("weight"),
            "bias": column("bias"),
        }
    if kind is nn.MaxPool2d:
        assert isinstance(part, nn.MaxPool2d)
        if part.ceil_mode or part.return_indices or _one(part.dilation, place) != 1:
            raise Unsupported(f"{place} has dilation, ceil_mode or return_indices")
        window = _window(part.kernel_size, part.stride, part.padding, place)
        return {"kind": "max_pool", "place": place, **window}
    if kind is nn.AvgPool2d:
        assert isinstance(part, nn.AvgPool2d)
        window = _window(part.kernel_size, part.stride, part.padding, place)
        counts_less = window["pad"] and not part.count_include_pad
        if part.ceil_mode or part.divisor_override or counts_less:
            raise Unsupported(
                f"{place} has ceil_mode, or divides by another number than its kernel's size"
            )
        return {"kind": "avg_pool", "place": place, **window}
    if kind is nn.Flatten:
        assert isinstance(part, nn.Flatten)
        if (part.start_dim, part.end_dim) != (1, -1):
            raise Unsupported(f"{place} flattens other dimensions than those of a sample")
        return {"kind": "flatten", "place": place}
    if kind is nn.ReLU:
        return {"kind": "relu", "place": place}
    if kind is nn.Dropout:
        assert isinstance(part, nn.Dropout)
        return {"kind": "dropout", "place": place, "rate": part.p}
    raise Unsupported(f"{place} is not one of those the native engine knows")


def _of_function(node: fx.Node) -> Layer:
    """The layer for a function that the model calls."""
    target, args, named = node.target, node.args[1:], dict(node.kwargs)
    place = f"the call of {getattr(target, '__name__', target)}"
    named.pop("inplace", None)
    if target in (torch.relu, functional.relu, "relu"):
        return {"kind": "relu", "place": place}
    if target in (torch.flatten, "flatten"):
        given = dict(zip(("start_dim", "end_dim"), args, strict=False)) | named
        if {"end_dim": -1, **given} == {"start_dim": 1, "end_dim": -1}:
            return {"kind": "flatten", "place": place}
    if target in ("view", "reshape", torch.reshape):
        sizes = tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
        if len(sizes) == 2:  # (batch, -1) or (-1, features); the layer after it has as many inputs
            return {"kind": "flatten", "place": place}
    if target in (functional.max_pool2d, torch.max_pool2d, functional.avg_pool2d):
        given = dict(zip(("kernel_size", "stride", "padding"), args, strict=False)) | named
        usual = all(given.pop(name, value) == value for name, value in POOLING_DEFAULTS.items())
        if usual and len(given) <= 3:
            kernel = given["kernel_size"]
            kind = "avg_pool" if target is functional.avg_pool2d else "max_pool"
            stride, padding = given.get("stride") or kernel, given.get("padding", 0)
            return {"kind": kind, "place": place, **_window(kernel, stride, padding, place)}
    raise Unsupported(f"{place} is not one of the operations the native engine knows")


def _window(kernel: Any, stride: Any, padding: Any, place: str) -> Layer:
    sizes = {"kernel": kernel, "stride": stride, "pad": padding}
    return {name: _one(value, place) for name, value in sizes.items()}


def _one(value: Any, place: str) -> int:
    """The number that stands for height and width alike."""
    values = set(value) if isinstance(value, tuple | list) else {value}
    if len(values) != 1 or not all(isinstance(v, int) for v in values):
        raise Unsupported(f"{place} is not square: {value}")
    return int(values.pop())
