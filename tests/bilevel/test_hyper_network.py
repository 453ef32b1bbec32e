"""What pFedHN refuses; its numbers are compared with a twin in `conformance/test_twins.py`."""

from typing import Any

import numpy as np
import pytest

from helpers import BowlEngine
from wecfl import methods
from wecfl.bilevel.clustering import Nearest
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.errors import ConfigError


def after_a_round(method: Method) -> State:
    engine: Any = BowlEngine(np.random.default_rng(0).normal(size=(5, 4)), np.ones(5, np.int64))
    setting = Setting(method, engine, LocalPlan(steps=2))
    return next(iterate(setting, opening(setting)))


def test_it_is_refused_in_one_line_where_it_can_not_work() -> None:
    with pytest.raises(ConfigError, match="GB"):
        after_a_round(methods.pfedhn(hidden=10**10))
    with pytest.raises(ConfigError, match="clients share a cluster"):
        after_a_round(methods.pfedhn().replace(clustering=Nearest()))
    bad: list[dict[str, Any]] = [{"embedding": 0}, {"hidden": 0}, {"server_lr": 0.0}]
    for options in bad:
        with pytest.raises(ConfigError, match=next(iter(options))):
            methods.named("pfedhn", **options)


def test_every_client_has_a_model_of_its_own_and_a_vector() -> None:
    state = after_a_round(methods.pfedhn(hidden=6))
    assert sorted(state.labels.tolist()) == list(range(5))
    assert len(np.unique(state.centers, axis=0)) == 5
    assert state.known["embedding"].shape == (5, 1 + 5 // 4)
    assert state.whole["hyper.4"].shape == (7, 4)
