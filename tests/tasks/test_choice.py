"""Which task it is: named, written down and read back, or chosen by the targets and told."""

import logging
from typing import Any

import numpy as np
import pytest

import wecfl
from wecfl import Federation, methods
from wecfl.errors import ConfigError, DataError
from wecfl.tasks import Binary, Classification, MultiLabel, Regression, described, fitted, parsed

RNG = np.random.default_rng(0)


def federation(*ys: Any, **options: Any) -> Federation:
    """Clients with these targets, one of two features."""
    xs = [RNG.normal(size=(len(y), 2)).astype(np.float32) for y in ys]
    return Federation.from_arrays(xs, ys, **options)


@pytest.mark.parametrize(
    "task",
    [
        Classification(), Classification(weights=(1.0, 2.5), smoothing=0.1, gamma=2.0, ignore=-1),
        Classification(weights="balanced", headline="auc"), Binary(weight=3.0), MultiLabel(4),
        Regression("huber", delta=0.5), Regression("quantile", quantile=0.9, outputs=2),
    ],
)  # fmt: skip
def test_a_written_task_is_read_back(task: Any) -> None:
    assert parsed(described(task)) == task


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("classificaton", "did you mean 'classification'"),
        ("regression(los=mse)", "did you mean 'loss'"),
        ("regression(loss=cubic)", "mse, mae, huber, quantile"),
        ("regression(loss=huber", "OPTION=VALUE"),
        ("regression(__import__('os'))", "OPTION=VALUE"),
        ("regression(delta=open('x'))", "OPTION=VALUE"),
        ("classification(smoothing=1)", "smoothing"),
        ("classification(gamma=-1)", "gamma"),
        ("classification(classes=3, weights=[1, 2])", "weights"),
        ("binary(weight=0)", "weight"),
    ],
)
def test_a_wrong_task_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("y", "name", "said"),
    [
        (np.arange(20) % 3, "classification", "3 distinct"),
        (np.arange(20) % 2 == 0, "classification", "2 distinct"),
        (np.array(["no", "yes"] * 10), "classification", "2 distinct names"),
        (np.arange(20) % 3 + 0.0, "regression", "floats"),
        (RNG.normal(size=(20, 2)), "regression", "2 numbers"),
        (RNG.integers(0, 2, (20, 3)), "multi-label", "3 answers"),
    ],
)
def test_auto_follows_the_targets_and_says_why(
    y: Any, name: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "wecfl"):
        found = fitted("auto", federation(y, y))
    assert found.task.name == name
    assert said in found.reason and found.reason in caplog.text
    assert "\n" not in found.reason


def test_labels_far_above_the_number_of_samples_are_refused() -> None:
    """They would be a model with as many outputs."""
    far = federation(np.arange(20) % 2 + 10**9)
    for task in ("auto", "classification"):
        with pytest.raises(DataError, match=r"1000000001, .* number of samples, 20"):
            fitted(task, far)


def test_many_texts_are_not_called_numbers() -> None:
    texts = [f"patient {i}" for i in range(200)]
    with pytest.raises(ConfigError, match=r"texts with 200 .* task classification"):
        fitted("auto", federation(np.array(texts), np.array(texts)))


def test_many_whole_numbers_never_become_classes_in_silence() -> None:
    ages = federation(RNG.permutation(np.arange(18, 90)), RNG.permutation(np.arange(18, 90)))
    with pytest.raises(ConfigError, match=r"72 distinct.*18 to 89.*regression"):
        wecfl.run(ages, methods.fedavg, rounds=1)
    assert wecfl.run(ages, methods.fedavg, rounds=1, task="regression").records[0]["rmse"] > 0
    assert fitted("classification", ages).task.outputs == 90
    below = federation(np.arange(20) - 10, np.arange(20) - 10)
    assert fitted("regression", below).clients.y.min() == -10  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("y", "task", "said"),
    [
        (np.arange(10) - 1, Classification(), "client 0: label -1 of sample 0"),
        (np.arange(10) / 2, Classification(), "label 0.5 of sample 1"),
        (np.arange(10) % 3, Classification(classes=2), "label 2 of sample 2.*0 … 1"),
        (np.arange(10) % 3, Binary(), "label 2 of sample 2"),
        (np.full((10, 2), 2), MultiLabel(), "0 or 1"),
        (np.ones((10, 2)), Regression(outputs=3), "2 numbers, expected 3"),
        (np.ones((10, 2)), Classification(), "multi-label"),
        (np.full(10, 7), Classification(ignore=7), "client 0: no training"),
    ],
)
def test_a_target_that_does_not_suit_the_task_is_named(y: Any, task: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        task.fit(federation(y))


@pytest.mark.parametrize(("engine", "mark"), [("torch", -1), ("native", -1), ("native", 255)])
def test_ignored_samples_are_neither_trained_on_nor_scored(engine: str, mark: int) -> None:
    y = RNG.integers(0, 3, 60)
    x = RNG.normal(size=(60, 2)).astype(np.float32)
    left_out = RNG.random(60) < 0.3
    marked = np.where(left_out, mark, y)
    rows = [np.arange(i, 60, 2) for i in (0, 1)]
    tests = ([x[r[:10]] for r in rows], [marked[r[:10]] for r in rows])
    clean = (
        [x[r[:10]][~left_out[r[:10]]] for r in rows],
        [y[r[:10]][~left_out[r[:10]]] for r in rows],
    )
    with_marks = Federation.from_arrays([x[r] for r in rows], [marked[r] for r in rows], test=tests)
    without = Federation.from_arrays(
        [x[r][~left_out[r]] for r in rows], [y[r][~left_out[r]] for r in rows], test=clean
    )
    options: dict[str, Any] = {"rounds": 2, "model": "logistic", "engine": engine}
    one = wecfl.run(with_marks, methods.fedavg, task=Classification(ignore=mark), **options)
    two = wecfl.run(without, methods.fedavg, task=Classification(), **options)
    np.testing.assert_array_equal(one.centers, two.centers)
    assert one.records[-1]["clients"] == two.records[-1]["clients"]


@pytest.mark.parametrize(
    ("shares", "headline"),
    [
        ((0.5, 0.5), "accuracy"), ((0.7, 0.3), "accuracy"), ((0.84, 0.16), "auc"),
        ((0.4, 0.3, 0.3), "accuracy"), ((0.8, 0.1, 0.1), "balanced_accuracy"),
    ],
)  # fmt: skip
def test_the_headline_follows_the_balance_of_the_classes(shares: Any, headline: str) -> None:
    y = np.repeat(np.arange(len(shares)), (100 * np.array(shares)).astype(int))
    held = federation(y, y)
    result = wecfl.run(held, methods.fedavg, rounds=1, model="logistic", task="classification")
    assert next(iter(result.summary["scores"])) == headline
    if len(shares) == 2:
        told = wecfl.run(held, methods.fedavg, rounds=1, model="logistic", task="binary")
        assert next(iter(told.summary["scores"])) == headline
        assert told.centers.shape[1] == 3  # two weights and a bias: one logit


def test_balanced_weights_count_every_class_alike() -> None:
    held = federation(np.arange(100) // 80, np.arange(100) // 80)
    task, _ = Classification(weights="balanced").fit(held)
    counts = np.bincount(held.y[np.concatenate(held.train)])
    products = np.array(task.weights) * counts
    assert products == pytest.approx(products[0])
    assert np.average(np.array(task.weights), weights=counts) == pytest.approx(1)
    assert Binary(weight="balanced").fit(held)[0].weight == pytest.approx(4)
    assert task.fit(held)[0] == task  # nothing changes the second time
