"""What clients tell once: when they are asked, what is kept, and what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

import wecfl
from helpers import run_flat
from wecfl import Federation, methods
from wecfl.bilevel.distance import angle_sum, smallest_angle
from wecfl.core.channel import Channel
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.engine import make_engine
from wecfl.errors import ConfigError
from wecfl.models import build


def states(fed: Federation, method: Any, rounds: int = 4, **how: Any) -> tuple[Any, list[State]]:
    seen: list[State] = []

    def watch(record: Any, found: Any) -> None:
        seen.append(found[0])

    result = run_flat(
        fed, method, model="mlp", rounds=rounds, steps=3, lr=0.05, watch=[watch], workers=1, **how
    )
    return result, seen


def told(state: State) -> set[int]:
    rows = state.known["told"].reshape(len(state.labels), -1)
    return set(np.flatnonzero(~np.isnan(rows).any(axis=1)).tolist())


def test_clients_are_asked_once_before_they_first_train(fed: Federation) -> None:
    method = methods.pacfl(vectors=1, angle_threshold=1.0)
    everyone, _ = states(fed, method)
    up = [record["traffic"]["up"] for record in everyone.records]
    assert up[0] - up[1] == 5 * 3 * 6 * 4  # five clients, three classes, six numbers, float32
    assert up[1] == up[2] == up[3]
    _, seen = states(fed, method, rounds=6, participation=0.4)
    for before, after in pairwise(seen):
        assert set(np.flatnonzero(after.heard)) <= told(before) <= told(after)
    assert 2 < len(told(seen[0])) < 5 == len(told(seen[-1]))


def test_what_was_told_stays_and_so_do_clusters(fed: Federation) -> None:
    _, seen = states(fed, methods.pacfl(vectors=1, angle_threshold=1.0))
    for before, after in pairwise(seen):
        np.testing.assert_array_equal(before.labels, after.labels)
        assert before.known["told"].tobytes() == after.known["told"].tobytes()
    last = seen[-1]
    assert last.labels.max() > 0
    for k in range(last.labels.max() + 1):  # the center is one of the members
        members = last.known["told"][last.labels == k]
        assert any(np.array_equal(last.cluster["told"][k], member) for member in members)


def test_angles_do_not_depend_on_the_basis() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=(2, 3, 8))
    turned = np.linalg.qr(draws.normal(size=(3, 3)))[0] @ a
    short = np.concatenate([b[:2], np.zeros((1, 8))])
    theirs = np.degrees(subspace_angles(a.T, b.T))
    fewer = np.degrees(subspace_angles(a.T, b[:2].T))
    others = np.stack([b, short])
    for one in (a, turned):
        np.testing.assert_allclose(
            smallest_angle(one[None], others)[0], [theirs.min(), fewer.min()], atol=1e-6
        )
        np.testing.assert_allclose(
            angle_sum(one[None], others)[0], [theirs.sum(), fewer.sum()], atol=1e-6
        )
    entries = np.degrees(np.arccos(np.clip(a @ b.T, -1, 1))).min()  # what the authors' code takes
    assert abs(entries - theirs.min()) > 1


def test_what_is_told_is_refused_under_privacy(fed: Federation) -> None:
    with pytest.raises(ConfigError, match="'told'"):
        wecfl.run(fed, methods.pacfl(), model="mlp", privacy=wecfl.Privacy(clip=1.0))


def test_a_task_without_classes_is_refused(fed: Federation) -> None:
    numbers = [fed.x[rows, :1] for rows in fed.train]
    samples = [fed.x[rows] for rows in fed.train]
    other = Federation.from_arrays(samples, numbers, seed=0)
    with pytest.raises(ConfigError, match="no classes"):
        wecfl.run(other, methods.pacfl(), model="mlp", rounds=1)


@pytest.mark.parametrize(
    "options",
    [{"vectors": 0}, {"angle_threshold": 0.0}, {"linkage": "ward"}, {"angles": "largest"}],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options)).split("_")[-1]):
        methods.named("pacfl", **options)


class Silent:
    """An engine in which one client never tells anything about its data."""

    def __init__(self, engine: Any, client: int) -> None:
        self.engine, self.client = engine, client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def ask(self, job: Any, sent: Any, who: Any = None, memory: Any = None) -> Any:
        answers = self.engine.ask(job, sent, who, memory or {})
        if "told" in answers.rows:
            answers.outcome[who == self.client] = Reply.LOST
        return answers


def test_a_client_that_has_not_told_has_no_part_in_a_center(fed: Federation) -> None:
    method = methods.pacfl(vectors=1, angle_threshold=1.0)
    module = build("mlp", shape=fed.shape, classes=3)
    ended = []
    for clients in (fed, fed.subset([0, 1, 2, 3])):
        with make_engine("native", clients, module, workers=1) as engine:
            runner: Any = Silent(engine, 4)
            channel = Channel(keys=clients.keys)
            setting = Setting(method, runner, LocalPlan(steps=3, lr=0.05), channel=channel)
            path = iterate(setting, opening(setting))
            next(path)
            ended.append(next(path))
    np.testing.assert_array_equal(ended[0].labels[:4], ended[1].labels)
    np.testing.assert_array_equal(ended[0].centers, ended[1].centers)
    assert ended[0].met is not None
    assert ended[0].met.tolist() == [True] * 4 + [False]
