"""Translates a module into the list of layers that the native kernels run.

`torch.fx` records what the module calls. Each layer says whose outputs it reads, so that
additions and concatenations of several branches can be told.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import fx, nn

from wecfl.engine.native.layers import Layer, Unsupported, of_function, of_module
from wecfl.layout import Layout
from wecfl.models import unpacks

__all__ = ["graph"]

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
CONCATENATIONS = {torch.cat, torch.concat}


def graph(model: nn.Module, layout: Layout) -> list[Layer]:
    """The layers that a module calls, in this order.

    A layer reads the output of the one before it, or has a list `reads`: number 0 are the samples,
    and i + 1 is the output of layer i.

    >>> from wecfl.models import layout_of
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [layer["kind"] for layer in graph(net, layout_of(net))]
    ['flatten', 'linear', 'relu', 'linear']
    """
    if any("frozen" in entry.tags for entry in layout.entries):
        raise Unsupported("the model has frozen parameters")
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        raise Unsupported("two layers share a parameter")
    if unpacks(model):
        raise Unsupported("its samples are tokens or several arrays")
    walk = _Walk(model, {entry.name: entry.start for entry in layout.entries})
    if type(model) is nn.Linear:  # tracing would take it apart
        return [of_module("", model, walk.columns)]
    try:
        nodes = _traced(model).nodes
    except Exception as error:
        one_line = " ".join(str(error).split())
        raise Unsupported(f"torch.fx can't trace {type(model).__name__} ({one_line})") from None
    for node in nodes:
        walk.visit(node)
    return walk.layers


class _Walk:
    """The layers found so far, and which value each node of the graph stands for."""

    def __init__(self, model: nn.Module, columns: dict[str, int]) -> None:
        self.columns = columns
        self.layers: list[Layer] = []
        self._parts = dict(model.named_modules())
        self._values: dict[fx.Node, int] = {}
        self._called: set[str] = set()

    def visit(self, node: fx.Node) -> None:
        """Take the next node of the graph."""
        if node.op == "placeholder":
            if self._values:
                raise Unsupported("the model takes more than the samples")
            self._values[node] = 0
        elif node.op == "output":
            # The last layer of the list gives the logits.
            if node.args[0] not in self._values or self._read(node.args[0]) != len(self.layers):
                raise Unsupported(
                    "the model gives more than its logits, or not those of its last layer"
                )
        elif _measures(node):
            return
        elif node.op == "call_module":
            self._call(node, str(node.target))
        elif node.target in ADDITIONS and node.kwargs in ({}, {"alpha": 1}):
            self._add(node, {"kind": "add", "place": f"the addition '{node.name}'"}, node.args)
        elif node.target in CONCATENATIONS:
            self._concatenate(node)
        elif node.op == "get_attr":
            raise Unsupported(f"the model reads '{node.target}' outside of a layer")
        else:
            self._add(node, of_function(node), node.args[:1])

    def _call(self, node: fx.Node, name: str) -> None:
        part = self._parts[name]
        if name in self._called and next(part.parameters(), None) is not None:
            raise Unsupported(f"the layer '{name}' is used twice")
        self._called.add(name)
        self._add(node, of_module(name, part, self.columns), node.args)

    def _concatenate(self, node: fx.Node) -> None:
        tensors, *rest = node.args
        dim = rest[0] if rest else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if dim not in (1, -3) or not isinstance(tensors, tuple | list):
            raise Unsupported(f"the concatenation '{node.name}' is not one of channels or features")
        self._add(node, {"kind": "concat", "place": f"the concatenation '{node.name}'"}, tensors)

    def _add(self, node: fx.Node, layer: Layer, reads: Sequence[Any]) -> None:
        """Note this layer for the node; an empty one makes no new value."""
        numbers = [self._read(value) for value in reads]
        if not layer:
            self._values[node] = numbers[0]
            return
        then = layer.pop("then", None)
        if numbers != [len(self.layers)]:
            layer["reads"] = numbers
        self.layers.append(layer)
        if then:
            self.layers.append({"kind": then, "place": layer["place"]})
        self._values[node] = len(self.layers)

    def _read(self, value: Any) -> int:
        if not isinstance(value, fx.Node) or value not in self._values:
            raise Unsupported(f"the model computes with something else than tensors: {value}")
        return self._values[value]


def _traced(model: nn.Module) -> fx.Graph:
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
