"""What a run holds at a time, in matrices of clients × parameters."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import wecfl
from helpers import run_flat, same_states
from wecfl import Conditions, methods
from wecfl.core.rounds import iterate, opening


@pytest.fixture(scope="module", autouse=True)
def loaded(fed: wecfl.Federation) -> None:
    """What a run imports is not counted."""
    run_flat(fed, methods.wecfl(k=2), model="mlp", rounds=1, steps=1, workers=1)


@pytest.mark.parametrize(
    ("m", "method", "matrices"),
    [
        (90, methods.wecfl(k=3), 3),
        (91, methods.fedavg, 3),
        (92, methods.fesem(k=3), 3),
        (93, methods.ifca(k=3), 3),
    ],
)
def test_a_run_holds_no_more_than_its_steps_need(
    m: int, method: wecfl.Method, matrices: int
) -> None:
    """Models, momentum, the momentum of the last complete round, and little else.

    Memory that waits to be used again (`wecfl.memory`) would not be counted, so each m is another.
    """
    draws = np.random.default_rng(0)
    xs = [draws.standard_normal((12, 900)).astype(np.float32) for _ in range(m)]
    clients = wecfl.Federation.from_arrays(xs, [np.arange(12) % 4] * m)
    tracemalloc.start()
    result = run_flat(clients, method, model="mlp", rounds=3, steps=1, workers=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = most / (4 * m * result.centers.shape[1])
    assert matrices < held < matrices + 0.5  # less, and the models were not what was counted


def test_memory_that_is_overwritten_has_the_same_bits(fed: wecfl.Federation) -> None:
    """Only some clients take part, so that the rows of the others must stay."""
    halves = Conditions(participation=0.5, dropout=0.2)
    experiment = wecfl.Experiment(fed, methods.ditto(), model="mlp", conditions=halves)
    with experiment.open() as opened:
        states: dict[float, list[wecfl.State]] = {}
        for above in (np.inf, 0):
            setting = replace(opened.settings[0], in_place_above=above)
            path = iterate(setting, opening(setting))
            states[above] = [next(path) for _ in range(3)]
    same_states(states[0][-1], states[np.inf][-1])
    for above, shared in ((0, True), (np.inf, False)):
        second, third = (state.memory["momentum"] for state in states[above][1:])
        assert np.shares_memory(second, third) is shared
