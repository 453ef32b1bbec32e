"""Random networks for the native engine, and torch's answer for them."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from wecfl import Federation, State
from wecfl.core.plan import LocalPlan
from wecfl.data.packing import Part
from wecfl.models import layout_of, make, row_of

Case = tuple[nn.Module, tuple[int, ...], int]
"""A model, the shape of its samples and its number of classes."""
WIDTHS = st.one_of(st.integers(1, 12), st.integers(16, 21))
"""Of channels: from 16 to 16 on, kernels of 3 × 3 run by squares of pixels."""
JUMPS = (nn.ReLU, nn.LeakyReLU)
"""Functions whose slope is another one below 0."""


def federation(
    shape: tuple[int, ...], classes: int, sizes: list[int], seed: int = 0, tokens: int = 0
) -> Federation:
    """Clients with random samples: normal numbers, or whole ones below `tokens`."""
    rng = np.random.default_rng(seed)
    xs: list[Any] = [rng.normal(size=(n, *shape)).astype(np.float32) for n in sizes]
    if tokens:
        xs = [rng.integers(0, tokens, (n, *shape)) for n in sizes]
    ys = [rng.integers(0, classes, n) for n in sizes]
    return Federation.from_arrays(xs, ys, classes=classes)


def tokens_of(model: nn.Module) -> int:
    """How many tokens a model knows; 0: its samples are no tokens."""
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    return min((table.num_embeddings for table in tables), default=0)


def of_tokens(model: nn.Module, length: int) -> nn.Module:
    """The model, as it takes samples of so many tokens out of a pool."""
    part = Part("", (length,), "whole")
    return make(model, shape=(length,), classes=1, seed=0, parts=(part,))


def start(model: nn.Module, m: int) -> State:
    rows = np.repeat(row_of(model)[None], m, axis=0)
    return State(0, {"model": rows}, rows[:1], np.zeros(m, dtype=np.int64))


def shaken(model: nn.Module, fed: Federation, shake: int) -> tuple[nn.Module, Federation]:
    """Every input moved to a neighbouring float32 or left, at random; 0: all are left.

    If samples are tokens, the rows of the embedding are moved instead.
    """
    if not shake:
        return model, fed
    ways = np.random.default_rng(shake)
    copy = deepcopy(model)
    tables = [part.weight for part in copy.modules() if isinstance(part, nn.Embedding)]
    for table in tables:
        moves = torch.from_numpy(ways.integers(-1, 2, tuple(table.shape)))
        table.data = table.data * (1 + moves * 2.0**-23).to(table.dtype)
    if tables:
        return copy, fed
    moved = fed.x * (1 + ways.integers(-1, 2, fed.x.shape) * 2.0**-23)
    return copy, replace(fed, x=moved.astype(np.float32))


def plain_steps(
    model: nn.Module, fed: Federation, plan: LocalPlan, dtype: torch.dtype, shake: int = 0
) -> Iterator[tuple[nn.Module, Tensor]]:
    """One round of client 0 in a plain loop: the model and the batch before each step.

    The inputs are `shaken` first.
    """
    client = 0
    model, fed = shaken(model, fed, shake)
    copy = deepcopy(model).to(dtype).train()
    optimizer = torch.optim.SGD(
        copy.parameters(), lr=float(plan.lr), momentum=plan.momentum, weight_decay=plan.weight_decay
    )
    own = fed.train[client]
    for chosen in plan.batches(len(own), 0, 0, int(fed.keys[client])):
        x = torch.from_numpy(fed.x[own[chosen]]).to(dtype)
        yield copy, x
        optimizer.zero_grad()
        torch.autograd.backward(
            functional.cross_entropy(copy(x), torch.from_numpy(fed.y[own[chosen]]))
        )
        optimizer.step()


def plain_torch(
    model: nn.Module, fed: Federation, plan: LocalPlan, dtype: torch.dtype, shake: int = 0
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The row of client 0 after one round of `plain_steps`."""
    *_, (copy, _) = plain_steps(model, fed, plan, dtype, shake)
    tensors = dict([*copy.named_parameters(), *copy.named_buffers()])
    names = [entry.name for entry in layout_of(model).entries]
    return np.concatenate([tensors[n].detach().double().numpy().ravel() for n in names])


def autograd(
    module: nn.Module, x: Any, y: Any, dtype: torch.dtype, *, width: int, by_batch: bool
) -> Any:
    """The gradient of the mean loss, batch by batch of this width."""
    copy = deepcopy(module).to(dtype).eval()
    for part in copy.modules():
        if isinstance(part, nn.BatchNorm2d) and by_batch:
            part.train()
    total = torch.zeros((), dtype=dtype)
    for first in range(0, len(y), width):
        batch = slice(first, first + width)
        output = copy(torch.from_numpy(x[batch]).to(dtype))
        truth = torch.from_numpy(y[batch])
        total = total + functional.cross_entropy(output, truth, reduction="sum") / len(y)
    parts = torch.autograd.grad(total, list(copy.parameters()))
    return np.concatenate([part.numpy().ravel() for part in parts])


def tied(model: nn.Module, x: Tensor, by_batch: bool) -> bool:
    """Whether rounding may decide a maximum, or the sign of a ReLU's input, the other way.

    The gradient jumps there: float32 may fall on either side, and no error bounds the difference.
    """
    copy, near = deepcopy(model).double().train(by_batch), []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        gaps = x.abs()
        if isinstance(layer, nn.MaxPool2d):
            sizes: Any = (layer.kernel_size, layer.stride, layer.padding)
            padded = functional.pad(x, [sizes[2]] * 4, value=-torch.inf)
            windows = padded.unfold(2, *sizes[:2]).unfold(3, *sizes[:2]).flatten(4)
            first, second = windows.topk(2).values.unbind(-1)
            gaps = (first - second)[first != 0]  # zeros come from a ReLU, which lets none back
        near.append(gaps.numel() and gaps.min() < 2e-6 * x.square().mean().sqrt())

    for part in copy.modules():
        if isinstance(part, (*JUMPS, nn.MaxPool2d)):
            part.register_forward_pre_hook(look)
    with torch.no_grad():
        copy(x.double())
    return any(near)


class Graph(nn.Module):
    """Layers that read any values made before: 0 is the sample, i + 1 the output of step i."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[tuple[str, list[int]]] = []

    def forward(self, x: Tensor) -> Tensor:
        values, layers = [x], iter(self.layers)
        for kind, reads in self.steps:
            given = [values[n] for n in reads]
            if kind == "add":
                values.append(given[0] + given[1])
            elif kind == "concat":
                values.append(torch.cat(given, 1))
            else:
                values.append(next(layers)(given[0]))
        return values[-1]


@st.composite
def networks(draw: st.DrawFn) -> Case:
    """Small random networks of all layers for images, with branches that meet again."""
    shape = (draw(WIDTHS), draw(st.integers(6, 14)), draw(st.integers(6, 14)))
    net, sizes, classes = Graph(), [shape], draw(st.integers(2, 7))

    def call(layer: nn.Module, reads: int | None = None) -> None:
        at = len(net.steps) if reads is None else reads
        with torch.no_grad():  # two samples: norms ask for more than one value
            size = layer.eval()(torch.zeros(2, *sizes[at])).shape[1:]
        net.layers.append(layer)
        net.steps.append(("layer", [at]))
        sizes.append(tuple(size))

    def join() -> None:
        """The last value and an earlier one, if they fit."""
        last = len(sizes) - 1
        same = [n for n, size in enumerate(sizes) if size == sizes[last]]
        near = [n for n, size in enumerate(sizes) if size[1:] == sizes[last][1:]]
        if draw(st.booleans()):
            net.steps.append(("add", [last, draw(st.sampled_from(same))]))
            sizes.append(sizes[last])
        elif sum(sizes[n][0] for n in near) < 24:
            reads = [draw(st.sampled_from(near)), last]
            net.steps.append(("concat", reads))
            sizes.append((sum(sizes[n][0] for n in reads), *sizes[last][1:]))

    for _ in range(draw(st.integers(0, 3))):
        if (layer := draw(convolutions(sizes[-1]))) is None:
            continue
        call(layer)
        if (layer := draw(norms(sizes[-1]))) is not None:
            call(layer)
        if draw(st.booleans()):
            join()
        if (layer := draw(activations())) is not None:
            call(layer)
        if (layer := draw(poolings(sizes[-1]))) is not None:
            call(layer)
        if draw(st.integers(0, 3)) == 0:
            join()
    call(nn.Flatten())
    if draw(st.booleans()):
        hidden = draw(st.integers(1, 20))
        call(nn.Linear(sizes[-1][0], hidden))
        if draw(st.booleans()) and hidden > 3:  # of two numbers only the sign is left
            call(nn.LayerNorm(hidden))
        call(nn.ReLU())
    call(nn.Linear(sizes[-1][0], classes, bias=draw(st.booleans())))
    _draw_parameters(net, draw(st.integers(0, 1000)))
    return net, shape, classes


class Sequences(nn.Module):
    """What people write for texts and time series, in several ways."""

    def __init__(self, layers: list[nn.Module], end: str, features: int, classes: int) -> None:
        super().__init__()
        self.layers, self.end = nn.ModuleList(layers), end
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for layer in self.layers:
            if isinstance(layer, nn.LSTM):
                x, (state, _) = layer(x)
            elif isinstance(layer, nn.GRU):
                x, state = layer(x)
            elif isinstance(layer, nn.MultiheadAttention):
                x = x + layer(x, x, x, need_weights=False)[0]
            else:
                x = layer(x)
        if self.end == "all":
            x = self.head(x).mean(dim=1)
            return x
        ends = {
            "state": lambda: state[-1],
            "last": lambda: x[:, -1],
            "first": lambda: x[:, 0, :],
            "mean": lambda: x.mean(1),
            "flat": lambda: torch.flatten(x, 1),
        }
        out: Tensor = self.head(ends[self.end]())
        return out


@st.composite
def sequences(draw: st.DrawFn) -> Case:
    """Small random networks of tokens, or of features for each step."""
    steps, features, classes = (draw(st.integers(1, most)) for most in (7, 20, 5))
    layers: list[nn.Module] = []
    classes, tokens = classes + 1, draw(st.integers(0, 9))
    shape: tuple[int, ...] = (steps, features)
    if tokens:
        unlearned = draw(st.sampled_from([None, 0, tokens - 1]))
        layers.append(nn.Embedding(tokens, features, padding_idx=unlearned))
        shape = (steps,)
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["linear", "norm", "tanh", "attention"]))
        if kind == "linear":
            wider = draw(st.integers(1, 20))
            layers.append(nn.Linear(features, wider, bias=draw(st.booleans())))
            features = wider
        elif kind == "norm" and features > 3:
            layers.append(nn.LayerNorm(features))
        elif kind == "attention":
            heads = draw(st.sampled_from([n for n in range(1, features + 1) if features % n == 0]))
            bias = draw(st.booleans())
            layers.append(nn.MultiheadAttention(features, heads, bias=bias, batch_first=True))
        else:
            layers.append(nn.Tanh())
    ends = ["last", "first", "mean", "flat", "all"]
    if draw(st.integers(0, 3)):
        units, depth = draw(st.integers(1, 40)), draw(st.sampled_from([1, 1, 2]))
        recurrent = draw(st.sampled_from([nn.GRU, nn.LSTM]))
        options = {"bias": draw(st.booleans()), "bidirectional": draw(st.booleans())}
        layers.append(recurrent(features, units, depth, batch_first=True, **options))
        features = units * (1 + options["bidirectional"])
        ends.append("state")
    end = draw(st.sampled_from(ends))
    width = {"flat": features * steps, "state": units if end == "state" else 0}.get(end, features)
    net = Sequences(layers, end, width, classes)
    _draw_parameters(net, draw(st.integers(0, 1000)))
    return (of_tokens(net, steps) if tokens else net), shape, classes


def _draw_parameters(net: nn.Module, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for layer in net.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()


@st.composite
def convolutions(draw: st.DrawFn, size: tuple[int, ...]) -> nn.Module | None:
    c, *sides = size
    if draw(st.booleans()):  # the usual ones, which have loops of their own
        kernel: Any = draw(st.sampled_from([1, 3, 5, 7]))
        pad: Any = draw(st.integers(0, kernel - 1))
        if min(sides) + 2 * pad < kernel:
            return None
        bias, out = draw(st.booleans()), draw(WIDTHS)
        return nn.Conv2d(c, out, kernel, draw(st.sampled_from([1, 1, 2])), pad, bias=bias)
    groups = draw(st.sampled_from([n for n in range(1, c + 1) if c % n == 0]))
    kernel, pad = (draw(st.tuples(st.integers(low, 4), st.integers(low, 4))) for low in (1, 0))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    if any(
        n + 2 * p < d * (k - 1) + 1 for n, p, k, d in zip(sides, pad, kernel, dilation, strict=True)
    ):
        return None
    out = groups * draw(st.integers(1, max(1, 12 // groups)))
    return nn.Conv2d(c, out, kernel, stride, pad, dilation, groups)


@st.composite
def norms(draw: st.DrawFn, size: tuple[int, ...]) -> nn.Module | None:
    c, h, w = size
    affine = draw(st.booleans())
    kind = draw(st.sampled_from(["none", "batch", "group", "instance", "layer", "row"]))
    if kind == "none" or h * w < 4:
        return None
    if kind == "batch":
        return nn.BatchNorm2d(c, affine=affine)
    if kind == "group":
        groups = draw(st.sampled_from([n for n in range(1, c + 1) if c % n == 0]))
        return nn.GroupNorm(groups, c, affine=affine)
    if kind == "instance":
        return nn.InstanceNorm2d(c, affine=affine)
    if kind == "row" and w < 4:
        return None
    return nn.LayerNorm(size if kind == "layer" else w, elementwise_affine=affine)


@st.composite
def activations(draw: st.DrawFn) -> nn.Module | None:
    smooth = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.ELU(0.7)]
    return draw(st.sampled_from([None, nn.ReLU(), nn.ReLU(), nn.LeakyReLU(0.1), *smooth]))


@st.composite
def poolings(draw: st.DrawFn, size: tuple[int, ...]) -> nn.Module | None:
    _, h, w = size
    kind = draw(st.sampled_from(["none", "two", "max", "avg", "odd", "adaptive"]))
    if kind == "adaptive":
        return nn.AdaptiveAvgPool2d(draw(st.tuples(st.integers(1, 3), st.integers(1, 3))))
    if kind == "none" or min(h, w) < 3:
        return None
    if kind == "two":
        return nn.MaxPool2d(2)
    if kind == "max":
        return nn.MaxPool2d(3, 2, 1)
    if kind == "avg":
        return nn.AvgPool2d(3, 2, 1)
    counts = draw(st.booleans())
    return nn.AvgPool2d((2, 3), (2, 1), (1, 0), ceil_mode=True, count_include_pad=counts)
