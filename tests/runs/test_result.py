"""A result by the names of its clients: models, predictions, one line about it."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import numpy as np
import pytest
import torch

import wecfl
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, DataError, WecflError
from wecfl.runs.result import Result

notebook = methodcaller("_repr_html_")  # as Jupyter calls it
NAMES = ["site 7", "Ward <b>", "ü", "0", "site 8"]


@pytest.fixture(scope="module")
def named(fed: Federation) -> Federation:
    """Five clients with names of their own; that of the fourth looks like a number."""
    xs, ys = ([rows[own] for own in fed.train] for rows in (fed.x, fed.y))
    return wecfl.Federation.from_arrays(xs, ys, names=NAMES)


@pytest.fixture(scope="module")
def result(named: Federation) -> Result:
    plan = wecfl.Plan(lr=0.1, batch=8)
    return wecfl.run(named, wecfl.methods.wecfl(k=2), model="mlp", rounds=3, plan=plan)


def test_a_client_is_asked_for_by_its_name(result: Result, named: Federation) -> None:
    assert result.clients["client"].tolist() == NAMES
    x = named.x[named.test[3]]
    for i, name in enumerate(NAMES):
        with torch.inference_mode():
            logits = [result.model(client=who)(torch.from_numpy(x)) for who in (name, i)]
        own = torch.from_numpy(x)
        with torch.inference_mode():
            expected = result.model(cluster=int(result.labels[i]))(own)
        assert torch.equal(logits[0], logits[1])
        assert torch.equal(logits[0], expected)
        np.testing.assert_array_equal(result.predict(x, client=name), expected.argmax(1).numpy())
        np.testing.assert_allclose(
            result.predict_proba(x, client=name), torch.softmax(expected, 1).numpy(), rtol=1e-5
        )
    assert result.predict(x[:0], client="0").shape == (0,)
    assert result.predict_proba(x.tolist(), cluster=0).shape == (len(x), 3)


@pytest.mark.parametrize(
    ("x", "who", "said"),
    [
        (np.zeros((2, 5)), {"client": "ü"}, r"\(2, 5\), expected \(samples, 6\)"),
        (np.zeros(6), {"client": "ü"}, r"\(6,\), expected \(samples, 6\)"),
        (np.full((1, 6), "a"), {"client": "ü"}, "expected numbers"),
        (np.full((1, 6), np.nan), {"client": "ü"}, "NaN"),
        ([[1], [1, 2]], {"client": "ü"}, "not an array"),
        (np.zeros((1, 6)), {"client": "site 9"}, "unknown client 'site 9'; did you mean"),
        (np.zeros((1, 6)), {"client": 5}, "from 0 to 4"),
        (np.zeros((1, 6)), {"cluster": "0"}, "from 0 to 1"),
        (np.zeros((1, 6)), {}, "either"),
        (np.zeros((1, 6)), {"client": 0, "cluster": 0}, "either"),
    ],
)
def test_what_can_t_be_predicted_is_said_in_one_line(
    result: Result, x: Any, who: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        result.predict(x, **who)
    assert isinstance(caught.value, WecflError)
    assert "\n" not in str(caught.value)


def test_names_are_unique_texts(fed: Federation) -> None:
    xs, ys = [fed.x[:4], fed.x[4:8]], [fed.y[:4], fed.y[4:8]]
    numbered: Any = [7, 8]
    assert Federation.from_arrays(xs, ys, names=numbered).names == ("7", "8")
    with pytest.raises(DataError, match=r"two clients.*'a'"):
        Federation.from_arrays(xs, ys, names=["a", "a"])


def test_one_line_and_a_table_for_notebooks(result: Result, named: Federation) -> None:
    assert "\n" not in repr(result) + repr(named)
    assert "5 clients" in repr(result)
    assert repr(named).startswith("Federation(5 clients, ")
    for shown in (result, named):
        page = notebook(shown)
        assert page.count("<tr") == 1 + len(NAMES)
        assert "Ward &lt;b&gt;" in page
        assert "Ward <b>" not in page
