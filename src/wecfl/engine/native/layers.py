"""Translates single modules and functions of torch into layers of the native kernels.

`native/rules.cpp` decides which sizes and shapes the kernels can run. This file refuses only what a
layer of the kernels can't express: an unknown kind of layer, or an option that a layer does not
have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from wecfl.errors import WecflError

__all__ = [
    "RECURRENT",
    "Layer",
    "Unsupported",
    "of_attention",
    "of_function",
    "of_module",
    "of_recurrent",
]

Layer = dict[str, Any]
"""The arguments of a `Layer` of the extension: its kind, its place in the model, and numbers."""


class Unsupported(WecflError):  # noqa: N818
    """The native engine can't run this model; the message says which layer is the reason."""


LAYER_DEFAULTS = {"dilation": 1, "groups": 1, "ceil": False, "count_padding": True}
"""The defaults of a layer of the extension."""


def of_module(name: str, part: nn.Module, columns: Mapping[str, int]) -> Layer:
    """The layer for a module of torch; empty if the module does nothing."""
    kind, place = type(part), _place(name, part)
    if kind is nn.Identity:
        return {}
    if kind not in MODULES:
        raise Unsupported(f"{place} is not one of the layers that the native engine knows")
    made = MODULES[kind](part, _columns(name, part, columns), place)
    return _without_defaults({"place": place, **made})


def of_recurrent(name: str, part: Any, columns: Mapping[str, int]) -> list[Layer]:
    """The layers for a GRU or LSTM: forward ones, backward ones if bidirectional, and Dropout."""
    place, row = _place(name, part), _columns(name, part, columns)
    if not part.batch_first:
        raise Unsupported(f"{place} is not batch_first")
    if part.proj_size:
        raise Unsupported(f"{place} has projections")
    ways = ("", "_reverse") if part.bidirectional else ("",)
    layers: list[Layer] = []
    for number in range(part.num_layers):
        if number and part.dropout:
            layers.append({"kind": "dropout", "rate": part.dropout, "place": place})
        for way in ways:
            end = f"_l{number}{way}"
            layer = {
                "kind": RECURRENT[type(part)],
                "place": place,
                "inputs": part.hidden_size * len(ways) if number else part.input_size,
                "outputs": part.hidden_size,
                "weight": row[f"weight_ih{end}"],
                "bias": row.get(f"bias_ih{end}", -1),
                "inner_weight": row[f"weight_hh{end}"],
                "inner_bias": row.get(f"bias_hh{end}", -1),
            }
            layers.append({**layer, "reverse": True} if way else layer)
    return layers


def of_attention(
    name: str, part: nn.MultiheadAttention, columns: Mapping[str, int]
) -> tuple[Layer, Layer, Layer]:
    """The matrix that makes queries, keys and values, the attention, and the matrix after it."""
    place, row = _place(name, part), _columns(name, part, columns)
    if not part.batch_first or part.dropout or part.bias_k is not None or part.add_zero_attn:
        raise Unsupported(f"{place} is not batch_first, or has Dropout or additional keys")
    size = part.embed_dim
    if not part._qkv_same_embed_dim:
        raise Unsupported(f"{place} has keys or values of another size")

    def linear(outputs: int, weight: str, bias: str) -> Layer:
        sizes = {"inputs": size, "outputs": outputs, "weight": row[weight]}
        return {"kind": "linear", "place": place, **sizes, "bias": row.get(bias, -1)}

    return (
        linear(3 * size, "in_proj_weight", "in_proj_bias"),
        {"kind": "attention", "place": place, "groups": part.num_heads},
        linear(size, "out_proj.weight", "out_proj.bias"),
    )


def _place(name: str, part: nn.Module) -> str:
    """The name of a layer in a line of the log."""
    kind = type(part).__name__
    return f"the layer '{name}' ({kind})" if name else f"the model ({kind})"


def _columns(name: str, part: nn.Module, columns: Mapping[str, int]) -> dict[str, int]:
    """The first column of each parameter and buffer of a layer; −1 if it is not in a row."""
    leaves = [leaf for leaf, _ in [*part.named_parameters(), *part.named_buffers()]]
    return {leaf: columns.get(f"{name}.{leaf}".lstrip("."), -1) for leaf in leaves}


def of_function(node: fx.Node) -> Layer:
    """The layer for a function or a method that the model calls; empty if it changes nothing."""
    target = node.target
    place = f"the call of {getattr(target, '__name__', target)}"
    if target in FUNCTIONS:
        names, make = FUNCTIONS[target]
        given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
        given.pop("inplace", None)
        surplus = len(node.args) - 1 > len(names) or not given.keys() <= {*names}
        if not surplus and (layer := make(given, place)) is not None:
            return _without_defaults({"place": place, **layer}) if layer else {}
    if target in ("view", "reshape", torch.reshape):
        args = node.args[1:]
        sizes = tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
        if len(sizes) == 2:  # (batch, -1) or (-1, features): the next layer has as many inputs
            return {"kind": "flatten", "place": place}
    raise Unsupported(f"{place} is not one of the operations that the native engine knows")


def _conv(part: Any, row: Mapping[str, int], place: str) -> Layer:
    if part.padding_mode != "zeros":
        raise Unsupported(f"{place} has a padding other than zeros")
    padding = part.padding
    if padding == "valid":
        padding = 0
    elif padding == "same":
        reach = [d * (k - 1) for d, k in zip(part.dilation, part.kernel_size, strict=True)]
        if any(r % 2 for r in reach):
            raise Unsupported(f"{place} pads one side more than the other")
        padding = tuple(r // 2 for r in reach)
    return {
        "kind": "conv",
        **_window(part.kernel_size, part.stride, padding, place),
        "dilation": _sides(part.dilation, place),
        "groups": part.groups,
        "inputs": part.in_channels,
        "outputs": part.out_channels,
        **_affine(row),
    }


def _batch_norm(part: Any, row: Mapping[str, int], place: str) -> Layer:
    if not part.track_running_stats or part.momentum is None:
        raise Unsupported(f"{place} has no running statistics, or cumulative ones")
    return {
        "kind": "norm",
        "inputs": part.num_features,
        **_affine(row),
        "mean": row["running_mean"],
        "variance": row["running_var"],
        "eps": part.eps,
        "momentum": part.momentum,
    }


def _group_norm(part: Any, row: Mapping[str, int], _place: str) -> Layer:
    sizes = {"groups": part.num_groups, "inputs": part.num_channels, "eps": part.eps}
    return {"kind": "group_norm", **sizes, **_affine(row)}


def _instance_norm(part: Any, row: Mapping[str, int], place: str) -> Layer:
    if part.track_running_stats:
        raise Unsupported(f"{place} keeps running statistics")
    channels = part.num_features
    sizes = {"groups": channels, "inputs": channels, "eps": part.eps}
    return {"kind": "group_norm", **sizes, **_affine(row)}


def _layer_norm(part: Any, row: Mapping[str, int], _place: str) -> Layer:
    count = int(torch.Size(part.normalized_shape).numel())
    return {"kind": "layer_norm", "inputs": count, "eps": part.eps, **_affine(row)}


def _linear(part: Any, row: Mapping[str, int], _place: str) -> Layer:
    sizes = {"inputs": part.in_features, "outputs": part.out_features}
    return {"kind": "linear", **sizes, **_affine(row)}


def _embedding(part: Any, row: Mapping[str, int], place: str) -> Layer:
    if part.max_norm is not None or part.scale_grad_by_freq:
        raise Unsupported(f"{place} has max_norm or scale_grad_by_freq")
    sizes = {"inputs": part.num_embeddings, "outputs": part.embedding_dim}
    unlearned = {} if part.padding_idx is None else {"number": part.padding_idx}
    return {"kind": "embedding", **sizes, **unlearned, "weight": row["weight"]}


def _affine(row: Mapping[str, int]) -> Layer:
    return {leaf: row.get(leaf, -1) for leaf in ("weight", "bias")}


def _flatten(start: int, end: int, place: str) -> Layer:
    if (start, end) != (1, -1):
        raise Unsupported(f"{place} flattens other dimensions than those of a sample")
    return {"kind": "flatten"}


def _gelu(approximate: str) -> Layer:
    return {"kind": "gelu_tanh" if approximate == "tanh" else "gelu"}


def _max_pool(given: Mapping[str, Any], place: str) -> Layer:
    if given.get("return_indices") or _sides(given.get("dilation", 1), place) != 1:
        raise Unsupported(f"{place} has dilation or return_indices")
    kernel, stride = given["kernel_size"], given.get("stride")
    stride = kernel if stride is None else stride
    window = _window(kernel, stride, given.get("padding", 0), place)
    return {"kind": "max_pool", **window, "ceil": bool(given.get("ceil_mode", False))}


def _mean_pool(given: Mapping[str, Any], place: str) -> Layer:
    if given.get("divisor_override"):
        raise Unsupported(f"{place} divides by another number than its kernel's size")
    counts = bool(given.get("count_include_pad", True))
    return {**_max_pool(given, place), "kind": "avg_pool", "count_padding": counts}


def _adaptive(size: Any, place: str) -> Layer:
    return {"kind": "adaptive_pool", "kernel": _sides(size, place)}


def _mean(given: Mapping[str, Any], _place: str) -> Layer | None:
    """The mean over height and width of an image, or over the steps of a sequence."""
    dims, keep = given.get("dim"), given.get("keepdim", False)
    if dims in (1, -2, (1,), [1]) and not keep:
        return {"kind": "time_mean"}
    if isinstance(dims, tuple | list) and {d % 4 for d in dims} == {2, 3}:
        return {"kind": "adaptive_pool", "kernel": 1, **({} if keep else {"then": "flatten"})}
    return None


def _without_defaults(layer: Layer) -> Layer:
    return {name: value for name, value in layer.items() if LAYER_DEFAULTS.get(name) != value}


def _of_options(part: nn.Module, *names: str) -> Layer:
    return {name: getattr(part, name) for name in names}


POOLING = ("kernel_size", "stride", "padding")
MAX_POOLING = (*POOLING, "dilation", "ceil_mode", "return_indices")
MEAN_POOLING = (*POOLING, "ceil_mode", "count_include_pad", "divisor_override")

MODULES: dict[type[nn.Module], Callable[[Any, Mapping[str, int], str], Layer]] = {
    nn.Conv2d: _conv,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm2d: _instance_norm,
    nn.LayerNorm: _layer_norm,
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.MaxPool2d: lambda part, _, place: _max_pool(_of_options(part, *MAX_POOLING), place),
    nn.AvgPool2d: lambda part, _, place: _mean_pool(_of_options(part, *MEAN_POOLING), place),
    nn.AdaptiveAvgPool2d: lambda part, _, place: _adaptive(part.output_size, place),
    nn.Flatten: lambda part, _, place: _flatten(part.start_dim, part.end_dim, place),
    nn.ReLU: lambda *_: {"kind": "relu"},
    nn.LeakyReLU: lambda part, *_: {"kind": "leaky_relu", "rate": part.negative_slope},
    nn.ELU: lambda part, *_: {"kind": "elu", "rate": part.alpha},
    nn.GELU: lambda part, *_: _gelu(part.approximate),
    nn.SiLU: lambda *_: {"kind": "silu"},
    nn.Tanh: lambda *_: {"kind": "tanh"},
    nn.Sigmoid: lambda *_: {"kind": "sigmoid"},
    nn.Dropout: lambda part, *_: {"kind": "dropout", "rate": part.p},
}
"""The modules that the kernels know: functions of the module, its columns and its place."""

RECURRENT = {nn.GRU: "gru", nn.LSTM: "lstm"}
"""The modules that are one or several layers of sequences."""

Make = Callable[[Mapping[str, Any], str], Layer | None]


def _plain(kind: str) -> tuple[tuple[str, ...], Make]:
    return (), lambda *_: {"kind": kind}


FUNCTIONS: dict[Any, tuple[tuple[str, ...], Make]] = {
    **dict.fromkeys((torch.relu, functional.relu, "relu", "relu_", torch.relu_), _plain("relu")),
    **dict.fromkeys((torch.tanh, functional.tanh, "tanh"), _plain("tanh")),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid, "sigmoid"), _plain("sigmoid")),
    functional.silu: _plain("silu"),
    functional.gelu: (
        ("approximate",),
        lambda given, _: _gelu(given.get("approximate", "none")),
    ),
    functional.leaky_relu: (
        ("negative_slope",),
        lambda given, _: {"kind": "leaky_relu", "rate": given.get("negative_slope", 0.01)},
    ),
    functional.elu: (
        ("alpha",),
        lambda given, _: {"kind": "elu", "rate": given.get("alpha", 1.0)},
    ),
    **dict.fromkeys(
        (torch.flatten, "flatten"),
        (
            ("start_dim", "end_dim"),
            lambda given, place: _flatten(
                given.get("start_dim", 0), given.get("end_dim", -1), place
            ),
        ),
    ),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), (MAX_POOLING, _max_pool)),
    functional.avg_pool2d: (MEAN_POOLING, _mean_pool),
    functional.adaptive_avg_pool2d: (
        ("output_size",),
        lambda given, place: _adaptive(given["output_size"], place),
    ),
    **dict.fromkeys((torch.mean, "mean"), (("dim", "keepdim"), _mean)),
    **dict.fromkeys(("contiguous", "float"), ((), lambda *_: {})),
}
"""The functions and methods that the kernels know: the names of their other arguments, and a
function that makes the layer, or None if it does not know these arguments."""


def _window(kernel: Any, stride: Any, padding: Any, place: str) -> Layer:
    sizes = {"kernel": kernel, "stride": stride, "pad": padding}
    return {name: _sides(value, place) for name, value in sizes.items()}


def _sides(value: Any, place: str) -> int | tuple[int, int]:
    """The numbers for height and width, or one number if they are the same."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(values) <= 2 or not all(isinstance(v, int) for v in values):
        raise Unsupported(f"{place} has sizes that are not one or two whole numbers: {value}")
    first, last = values[0], values[-1]
    return first if first == last else (first, last)
