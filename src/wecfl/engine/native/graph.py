"""Translates a module into the list of layers that the native kernels run.

`torch.fx` records what the module calls. Each layer says which outputs it reads, so that additions
and concatenations of several branches can be described. A GRU or LSTM returns several values: the
outputs of all steps, and the last states of its layers, which are steps of outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from wecfl.engine.native.layers import (
    RECURRENT,
    Layer,
    Unsupported,
    of_attention,
    of_function,
    of_module,
    of_recurrent,
)
from wecfl.layout import Layout
from wecfl.models import unpacked_parts

__all__ = ["graph"]

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
CONCATENATIONS = {torch.cat, torch.concat}
ZEROS = {torch.zeros, "new_zeros"}
CONCATENATION = {"kind": "concat", "number": -1}
"""A concatenation of features, which are the last dimension."""


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
    if len(unpacked_parts(model)) > 1:
        raise Unsupported("the model's samples are several arrays, or sequences with a mask")
    reader = _GraphReader(model, {entry.name: entry.start for entry in layout.entries})
    if type(model) is nn.Linear:  # tracing would look inside of it
        return [of_module("", model, reader.columns)]
    try:
        nodes = _traced(model).nodes
    except Exception as error:
        one_line = " ".join(str(error).split())
        raise Unsupported(f"torch.fx can't trace {type(model).__name__} ({one_line})") from None
    for node in nodes:
        reader.visit(node)
    return reader.layers


@dataclass(frozen=True, slots=True)
class _States:
    """The last states of recurrent layers: for each, the number of a value and the step in it."""

    steps: tuple[tuple[int, int], ...]


class _GraphReader:
    """The layers found so far, and the value of each node of the graph.

    A value is the number of a tensor, the result of a GRU or LSTM (a tuple of values, or
    `_States`), or "zeros", with which a GRU or LSTM begins.
    """

    def __init__(self, model: nn.Module, columns: dict[str, int]) -> None:
        self.columns = columns
        self.layers: list[Layer] = []
        self._parts = dict(model.named_modules())
        self._values: dict[Any, Any] = {}
        self._called: set[str] = set()

    def visit(self, node: fx.Node) -> None:
        """Take the next node of the graph."""
        if node.op == "placeholder":
            if self._values:
                raise Unsupported("the model takes more arguments than the samples")
            self._values[node] = 0
        elif node.op == "output":
            # The last layer of the list gives the logits.
            if node.args[0] not in self._values or self._values[node.args[0]] != len(self.layers):
                raise Unsupported(
                    "the model returns more than its logits, or not those of its last layer"
                )
        elif node.target is operator.getitem and node.args[0] in self._values:
            self._values[node] = self._item(node, self._values[node.args[0]], node.args[1])
        elif _measures(node):
            return
        elif node.target in ZEROS or (node.target == "to" and self._is_zeros(node.args[0])):
            self._values[node] = "zeros"
        elif node.op == "call_module":
            self._call(node, str(node.target))
        elif node.target in ADDITIONS and node.kwargs in ({}, {"alpha": 1}):
            self._add(node, {"kind": "add", "place": f"the addition '{node.name}'"}, node.args)
        elif node.target in CONCATENATIONS:
            self._concatenate(node)
        elif node.target is functional.scaled_dot_product_attention:
            self._values[node] = self._attend_with(node)
        elif node.op == "get_attr":
            raise Unsupported(f"the model reads '{node.target}' outside of a layer")
        else:
            self._add(node, of_function(node), node.args[:1])

    def _call(self, node: fx.Node, name: str) -> None:
        part = self._parts[name]
        if name in self._called and next(part.parameters(), None) is not None:
            raise Unsupported(f"the layer '{name}' is used twice")
        self._called.add(name)
        if type(part) in RECURRENT:
            self._values[node] = self._recur(node, name, part)
        elif type(part) is nn.MultiheadAttention:
            self._values[node] = self._attend(node, name, part)
        else:
            self._add(node, of_module(name, part, self.columns), node.args)

    def _recur(self, node: fx.Node, name: str, part: Any) -> Any:
        """The result of a GRU or LSTM: all steps of its last layer, and all last states."""
        layers = of_recurrent(name, part, self.columns)
        states = [*node.args[1:], *node.kwargs.values()]
        if not all(self._is_zeros(state) for state in states):
            raise Unsupported(f"{layers[0]['place']} begins with a state other than zeros")
        steps, value = [], self._read(node.args[0])
        for layer in layers:
            if layer["kind"] == "dropout":
                value = self._append(layer, [value])
                continue
            if not layer.get("reverse"):
                source, value = value, self._append(layer, [value])
                steps.append((value, -1))
                continue
            back = self._append(layer, [source])
            steps.append((back, 0))
            value = self._append({**CONCATENATION, "place": layer["place"]}, [value, back])
        last = _States(tuple(steps))
        return value, (last, None) if isinstance(part, nn.LSTM) else last

    def _attend(self, node: fx.Node, name: str, part: nn.MultiheadAttention) -> Any:
        """The result of a MultiheadAttention: its output, without the attention weights."""
        into, attention, out = of_attention(name, part, self.columns)
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        if given.get("key_padding_mask") is not None or given.get("attn_mask") is not None:
            raise Unsupported(f"{attention['place']} has a mask")
        reads = [self._read(given.get(argument)) for argument in names[:3]]
        if len({*reads}) == 1:
            value = self._append(into, reads[:1])
        else:  # each gets a third of the first matrix
            size = part.embed_dim
            thirds = [
                self._append(
                    {
                        **into,
                        "outputs": size,
                        "weight": into["weight"] + n * size * size,
                        "bias": into["bias"] + n * size if into["bias"] >= 0 else -1,
                    },
                    [read],
                )
                for n, read in enumerate(reads)
            ]
            value = self._append({**CONCATENATION, "place": into["place"]}, thirds)
        return self._append(out, [self._append(attention, [value])]), None

    def _attend_with(self, node: fx.Node) -> int:
        """The output of `functional.scaled_dot_product_attention`, with one head."""
        place = "the call of scaled_dot_product_attention"
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        if given.get("attn_mask") is not None or given.get("dropout_p") or given.get("enable_gqa"):
            raise Unsupported(f"{place} has a mask, Dropout or groups of heads")
        reads = [self._read(given.get(argument)) for argument in names[:3]]
        value = self._append({**CONCATENATION, "place": place}, reads)
        options = {"causal": bool(given.get("is_causal")), "rate": given.get("scale") or 0.0}
        return self._append({"kind": "attention", "place": place, **options}, [value])

    def _is_zeros(self, given: Any) -> bool:
        if isinstance(given, tuple):
            return all(map(self._is_zeros, given))
        return isinstance(given, fx.Node) and self._values.get(given) == "zeros"

    def _item(self, node: fx.Node, value: Any, index: Any) -> Any:
        """One of several results of a layer, or one step of a sequence."""
        place = f"the part '{node.name}'"
        if isinstance(value, tuple) and isinstance(index, int):
            return value[index]
        if isinstance(value, _States) and isinstance(index, int):
            output, step = value.steps[index]
            return self._append({"kind": "step", "number": step, "place": place}, [output])
        everything = slice(None)
        if isinstance(value, int) and isinstance(index, tuple) and len(index) in (2, 3):
            samples, step, *features = index
            if samples == everything and features in ([], [everything]) and isinstance(step, int):
                return self._append({"kind": "step", "number": step, "place": place}, [value])
        raise Unsupported(f"{place} is not a step of a sequence: [{index}]")

    def _concatenate(self, node: fx.Node) -> None:
        tensors, *rest = node.args
        dim = rest[0] if rest else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        place = f"the concatenation '{node.name}'"
        if not isinstance(dim, int) or not isinstance(tensors, tuple | list):
            raise Unsupported(f"{place} is not a concatenation of channels or features")
        self._add(node, {"kind": "concat", "number": dim, "place": place}, tensors)

    def _add(self, node: fx.Node, layer: Layer, reads: Sequence[Any]) -> None:
        """Record this layer for the node; an empty layer makes no new value."""
        numbers = [self._read(value) for value in reads]
        if not layer:
            self._values[node] = numbers[0]
            return
        then = layer.pop("then", None)
        self._values[node] = self._append(layer, numbers)
        if then:
            self._values[node] = self._append(
                {"kind": then, "place": layer["place"]}, [len(self.layers)]
            )

    def _append(self, layer: Layer, reads: list[int]) -> int:
        """Record a layer that reads these values; return the number of its output."""
        if reads != [len(self.layers)]:
            layer["reads"] = reads
        self.layers.append(layer)
        return len(self.layers)

    def _read(self, value: Any) -> int:
        number = self._values.get(value) if isinstance(value, fx.Node) else None
        if not isinstance(number, int):
            raise Unsupported(f"the model computes with a value that is not a tensor: {value}")
        return number


def _traced(model: nn.Module) -> fx.Graph:
    """The graph that `torch.fx.symbolic_trace` records, but made without patching `nn.Module`.

    The patch would affect all threads of the process, and break the models of other runs.
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
    """A class of layers that record their calls and do not compute anything."""

    def call(_: nn.Module, *args: Any, **named: Any) -> fx.Proxy:
        return tracer.create_proxy("call_module", name, args, named)

    return type(kind.__name__, (kind,), {"__call__": call})


def _measures(node: fx.Node) -> bool:
    """Whether this is x.size(…), x.shape or an item of it; only `view` and `reshape` use these."""
    sizes = node.op == "call_method" and node.target == "size"
    return sizes or node.target in (getattr, operator.getitem)
