"""Texts and time series in the native engine, as people write their models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wecfl
from helpers import local_update
from random_networks import federation, of_tokens, start
from wecfl import Correction, methods
from wecfl.core.plan import LocalPlan
from wecfl.engine import make_engine
from wecfl.engine.native import NativeEngine, Unsupported, instruction_sets
from wecfl.errors import EngineError

STEPS, TOKENS, CLASSES = 6, 9, 3


class Text(nn.Module):
    """An embedding, a recurrent layer, and any way from there to the last layer."""

    def __init__(self, way: Callable[..., Tensor], recurrent: Any = None, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 5)
        kind = recurrent or nn.GRU
        self.recurrent = kind(5, 7, **{"batch_first": True, **options})
        self.head = nn.Linear(7, CLASSES)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def unpacked(net: Any, x: Tensor) -> Any:
    _, h = net.recurrent(net.embedding(x))
    return net.head(h[0])


def tutorial(net: Any, x: Tensor) -> Any:
    return net.head(net.recurrent(net.embedding(x))[0][:, -1])


def mean(net: Any, x: Tensor) -> Any:
    out, _ = net.recurrent(net.embedding(x))
    return net.head(torch.mean(out, dim=1))


def of_lstm(net: Any, x: Tensor) -> Any:
    _, (h, _) = net.recurrent(net.embedding(x))
    return net.head(h[-1])


def sized(net: Any, x: Tensor) -> Any:
    out, _ = net.recurrent(net.embedding(x))
    return net.head(out[:, -1, :].view(x.size(0), -1))


def from_zeros(net: Any, x: Tensor) -> Any:
    zeros = torch.zeros(1, x.size(0), 7).to(x.device)
    return net.head(net.recurrent(net.embedding(x), (zeros, zeros))[0][:, -1])


def residual(net: Any, x: Tensor) -> Any:
    steps = torch.tanh(net.recurrent(net.embedding(x))[0])
    return net.head(steps + torch.sigmoid(steps)).mean(-2)


def both_states(net: Any, x: Tensor) -> Any:
    _, h = net.recurrent(net.embedding(x))
    return net.head(torch.cat([h[-2], h[-1]], dim=1))


class Attentive(Text):
    """The recurrent layer gives way to attention."""

    def __init__(self, way: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(way)
        del self.recurrent
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.query, self.key, self.value = (nn.Linear(5, 6) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, CLASSES)


def several_heads(net: Any, x: Tensor) -> Any:
    x = net.query(net.embedding(x))
    return net.head(net.norm(x + net.attention(x, x, x)[0]).mean(dim=1))


def two_sources(net: Any, x: Tensor) -> Any:
    x = net.embedding(x)
    out, _ = net.attention(net.query(x), net.key(x), value=net.value(x), need_weights=False)
    return net.head(out[:, 0])


def one_head(net: Any, x: Tensor) -> Any:
    x = net.embedding(x)
    attend = nn.functional.scaled_dot_product_attention
    return net.head(attend(net.query(x), net.key(x), net.value(x)).mean(1))


def causal(net: Any, x: Tensor) -> Any:
    x = net.embedding(x)
    q, k, v = net.query(x), net.key(x), net.value(x)
    out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    return net.head(out[:, 2])


def side_by_side(net: Any, x: Tensor) -> Any:
    x = net.embedding(x)
    return net.head(torch.cat([x, torch.tanh(net.recurrent(x)[0])], dim=-1).mean(1))


def wide(net: Text, features: int) -> Text:
    net.head = nn.Linear(features, CLASSES)
    return net


WAYS = {
    "both directions": wide(Text(tutorial, bidirectional=True, num_layers=2), 14),
    "the states of both directions": wide(Text(both_states, bidirectional=True), 14),
    "features of both": wide(Text(side_by_side), 12),
    "several heads": Attentive(several_heads),
    "attention to others": Attentive(two_sources, bias=False),
    "one head": Attentive(one_head),
    "causal attention": Attentive(causal),
    "the state of the first layer": Text(unpacked, num_layers=2),
    "the tutorial's": Text(tutorial),
    "the mean over time": Text(mean, bias=False),
    "the state of an LSTM": Text(of_lstm, nn.LSTM, num_layers=2),
    "a view": Text(sized),
    "zeros to begin with": Text(from_zeros, nn.LSTM),
    "branches of steps": Text(residual),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_write_it(way: str) -> None:
    """The engine compares a step and an evaluation with torch before it starts."""
    fed = federation((STEPS,), CLASSES, [20], tokens=TOKENS)
    engine = NativeEngine(fed, of_tokens(WAYS[way], STEPS))
    assert engine.name.startswith("native-")


def cells(net: Any, x: Tensor) -> Any:
    _, (_, c) = net.recurrent(net.embedding(x))
    return net.head(c[-1])


def begun(net: Any, x: Tensor) -> Any:
    return net.head(net.recurrent(net.embedding(x), torch.ones(1, x.size(0), 7))[0][:, -1])


def a_part(net: Any, x: Tensor) -> Any:
    return net.head(net.recurrent(net.embedding(x))[0][:, 1:].mean(1))


def computed(net: Any, x: Tensor) -> Any:
    return net.head(net.recurrent(net.embedding(torch.relu(x)))[0][:, -1])


def masked(net: Any, x: Tensor) -> Any:
    steps = net.query(net.embedding(x))
    return net.head(net.attention(steps, steps, steps, key_padding_mask=x)[0][:, -1])


def in_time(net: Any, x: Tensor) -> Any:
    x = net.recurrent(net.embedding(x))[0]
    return net.head(torch.cat([x, x], dim=1).mean(1))


def too_late(net: Any, x: Tensor) -> Any:
    return net.head(net.recurrent(net.embedding(x))[0][:, STEPS])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Text(cells, nn.LSTM), "not a step"),
        (Text(begun), "call of ones"),
        (Text(a_part), "not a step"),
        (Text(computed), "'embedding'.*than the samples"),
        (Text(too_late), f"step {STEPS} of a sequence of {STEPS}"),
        (Text(tutorial, batch_first=False), "not batch_first"),
        (Text(of_lstm, nn.LSTM, proj_size=2), "projections"),
        (Attentive(several_heads, dropout=0.1), "'attention'.*Dropout"),
        (Attentive(masked), "has a mask"),
        (Text(in_time), "neither channels nor features"),
        (Text(tutorial, nn.RNN), "'recurrent' .RNN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_torch(model: nn.Module, reason: str) -> None:
    fed = federation((STEPS,), CLASSES, [20], tokens=TOKENS)
    with pytest.raises(Unsupported, match=reason) as caught:
        NativeEngine(fed, of_tokens(model, STEPS))
    assert "\n" not in str(caught.value)


def test_masks_are_left_to_torch_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    texts = [[[1, 2], [3, 1, 2], [2], [1, 1]]] * 2

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = self.head((self.embedding(x) * mask[..., None]).sum(dim=1))
            return out

    fed = wecfl.Federation.from_arrays(texts, [[0, 1, 0, 1]] * 2)
    wecfl.run(fed, methods.fedavg, model=Masked, rounds=1, engine="auto")
    said = [
        record.getMessage() for record in caplog.records if "torch engine" in record.getMessage()
    ]
    assert len(said) == 1 and "mask" in said[0]


def test_a_run_of_tokens_is_native_and_agrees_with_torch() -> None:
    fed = federation((STEPS,), CLASSES, [20, 30], tokens=TOKENS)
    plan, net = wecfl.Plan(lr=0.1, steps=4, batch=8), Text(tutorial)
    ours, theirs = (
        wecfl.run(fed, methods.fedavg, model=net, rounds=2, engine=engine, plan=plan)
        for engine in ("native", "torch")
    )
    np.testing.assert_allclose(ours.centers, theirs.centers, atol=1e-5)


def test_a_token_that_no_embedding_has_is_named() -> None:
    fed = federation((STEPS,), CLASSES, [20, 30], tokens=TOKENS + 1)
    with pytest.raises(EngineError, match=f"token is {TOKENS}.*0 to {TOKENS - 1}") as caught:
        wecfl.run(fed, methods.fedavg, model=Text(tutorial), rounds=1, engine="native")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("isa", instruction_sets())
def test_same_bits_for_any_number_of_threads(isa: str) -> None:
    fed = federation((STEPS,), CLASSES, [11, 30, 17], tokens=TOKENS)
    net = of_tokens(Text(tutorial, nn.LSTM, num_layers=2, dropout=0.3), STEPS)
    begin, plan = start(net, 3), LocalPlan(steps=4, batch=7, lr=0.05)
    one, two, other = (
        local_update(NativeEngine(fed, net, workers=n, isa=isa), begin, plan, Correction(), seed)[0]
        for n, seed in ((1, 3), (2, 3), (2, 4))
    )
    assert one.tobytes() == two.tobytes() != other.tobytes()


def test_time_series_need_no_tokens() -> None:
    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(x)[1][0][-1])
            return out

    with make_engine("auto", federation((5, 4), CLASSES, [20]), Series()) as engine:
        assert engine.name.startswith("native-")
