"""Scores from tallies beside scikit-learn's from the predictions; what tallies promise."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from wecfl.tasks import Binary, Classification, MultiLabel, Regression, ranking

TASKS: dict[str, Any] = {
    "classes": Classification(classes=3, headline="balanced_accuracy"),
    "ranked": Classification(classes=3, headline="auc"),
    "two": Classification(classes=2, headline="auc"),
    "binary": Binary(),
    "labels": MultiLabel(classes=3),
    "numbers": Regression(outputs=3),
    "quantile": Regression("quantile", quantile=0.8, outputs=2),
}


def drawn(task: Any, n: int, seed: int) -> tuple[Any, Any]:
    """Outputs and targets that have something to do with each other."""
    rng = np.random.default_rng(seed)
    outputs = 3 * rng.normal(size=(n, task.outputs))
    noisy = outputs + 2 * rng.normal(size=outputs.shape)
    if isinstance(task, Classification):
        return outputs, noisy.argmax(axis=1)
    if isinstance(task, Binary):
        return outputs, (noisy[:, 0] > 2).astype(np.int64)
    if isinstance(task, MultiLabel):
        return outputs, (noisy > 2).astype(np.float32)
    return outputs, noisy.astype(np.float32)


@pytest.mark.parametrize("name", TASKS)
@given(seed=st.integers(0, 10_000))
def test_tallies_can_be_added_and_have_a_fixed_shape(name: str, seed: int) -> None:
    task = TASKS[name]
    outputs, targets = drawn(task, 30, seed)
    owners = np.random.default_rng(seed).integers(0, 4, 30)
    parts = task.tally(outputs, targets, owners, 4)
    whole = task.tally(outputs, targets, np.zeros(30, int), 1)
    assert parts.shape == (4, *task.shape(task.outputs)) and parts.dtype == np.float64
    np.testing.assert_allclose(parts.sum(axis=0), whole[0], rtol=1e-12)
    assert not any(task.complaint(each, 30) for each in (*parts, whole[0]))
    nothing = task.scores(np.zeros_like(parts))
    assert all(np.isnan(score).all() and score.shape == (4,) for score in nothing.values())


@pytest.mark.parametrize("name", TASKS)
def test_a_tally_of_nonsense_is_refused(name: str) -> None:
    task = TASKS[name]
    outputs, targets = drawn(task, 40, 0)
    honest = task.tally(outputs, targets, np.zeros(40, int), 1)[0]
    assert task.complaint(honest, 40) == ""
    assert "39" in task.complaint(honest, 39)  # more samples than a client can hold
    for factor in (-1.0, 0.51, 1e300):  # the sum of the last one is beyond all numbers
        assert task.complaint(factor * honest, 10**9)
    if isinstance(task, Regression):
        for column in (1, 4):  # errors and targets whose sums no numbers have
            wrong = honest.copy()
            wrong[:, column] /= 1e3
            assert "contradict" in task.complaint(wrong, 40)
        if name == "quantile":
            wrong = honest.copy()
            wrong[:, 6] = 41.0  # more targets below than there are
            assert "contradict" in task.complaint(wrong, 40)
    elif name != "classes":
        wrong = honest.copy().reshape(-1)
        wrong[-1] = 41.0
        assert task.complaint(wrong.reshape(honest.shape), 10**9)


def probabilities(outputs: Any) -> Any:
    return 1 / (1 + np.exp(-outputs))


def ece(p: Any, y: Any) -> float:
    """As its definition stands, bin by bin."""
    bins = np.minimum((10 * p + 1e-12).astype(int), 9)
    gaps = [abs(p[bins == b].sum() - y[bins == b].sum()) for b in range(10)]
    return float(sum(gaps) / len(p))


@given(st.integers(0, 10_000), st.integers(20, 200))
def test_scores_of_a_binary_task_are_those_of_scikit_learn(seed: int, n: int) -> None:
    outputs, y = drawn(task := Binary(), n, seed)
    if len(set(y)) < 2:
        return
    tally = task.tally(outputs, y, np.zeros(n, int), 1)
    scores = {name: float(score[0]) for name, score in task.scores(tally).items()}
    p, said = probabilities(outputs[:, 0]), (outputs[:, 0] >= 0).astype(int)
    assert scores["accuracy"] == pytest.approx(sk.accuracy_score(y, said))
    assert scores["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, said))
    assert scores["macro_f1"] == pytest.approx(sk.f1_score(y, said, average="macro"))
    assert scores["brier"] == pytest.approx(sk.brier_score_loss(y, p))
    assert scores["ece"] == pytest.approx(ece(p, y))
    (area,), (area_bound,) = (each[0] for each in ranking.auc(tally))
    (precision,), (precision_bound,) = (each[0] for each in ranking.average_precision(tally))
    assert (scores["auc"], scores["average_precision"]) == (area, precision)
    assert area_bound < 0.05
    assert abs(area - sk.roc_auc_score(y, p)) <= area_bound + 1e-12
    assert abs(precision - sk.average_precision_score(y, p)) <= precision_bound + 1e-12


def assert_within_bounds(outputs: Any, y: Any) -> None:
    tally = Binary().tally(outputs, y, np.zeros(len(y), int), 1)
    for ours, theirs in (
        (ranking.auc, sk.roc_auc_score), (ranking.average_precision, sk.average_precision_score),
    ):  # fmt: skip
        (value,), (bound,) = (each[0] for each in ours(tally))
        assert abs(value - theirs(y, outputs[:, 0])) <= bound + 1e-12


@given(st.integers(0, 10_000))
def test_bounds_hold_for_ties_and_for_scores_at_the_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.choice([-40.0, -13.0, -0.03, 0.0, 0.02, 0.04, 12.5, 90.0], (60, 1))
    assert_within_bounds(outputs, np.append(rng.integers(0, 2, 58), [0, 1]))


def test_bounds_hold_where_all_yeses_are_tied_below_a_no() -> None:
    assert_within_bounds(np.append(5.0, np.zeros(10))[:, None], np.append(0, np.ones(10, int)))


@pytest.mark.parametrize("name", ["ranked", "two", "labels"])
def test_the_auc_of_several_classes_is_the_mean_over_them(name: str) -> None:
    outputs, y = drawn(task := TASKS[name], 4000, 1)
    scores = task.scores(task.tally(outputs, y, np.zeros(4000, int), 1))
    if name == "labels":
        expected = sk.roc_auc_score(y, outputs)
    else:
        p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        expected = sk.roc_auc_score(y, p[:, 1] if name == "two" else p, multi_class="ovr")
    assert next(iter(scores)) == "auc"
    assert scores["auc"][0] == pytest.approx(expected, abs=2e-3)


def test_balanced_accuracy_comes_first_if_it_is_the_headline() -> None:
    outputs, y = drawn(task := TASKS["classes"], 200, 3)
    scores = task.scores(task.tally(outputs, y, np.zeros(200, int), 1))
    assert list(scores) == ["balanced_accuracy", "accuracy", "macro_f1"]
    expected = sk.balanced_accuracy_score(y, outputs.argmax(axis=1))
    assert scores["balanced_accuracy"][0] == pytest.approx(expected)


@given(st.integers(0, 10_000))
def test_scores_of_a_regression_are_those_of_scikit_learn(seed: int) -> None:
    outputs, y = drawn(task := TASKS["numbers"], 25, seed)
    y = y + 100  # far from 0, where sums of squares lose digits
    scores = task.scores(task.tally(outputs, y, np.zeros(25, int), 1))
    assert list(scores) == ["rmse", "r2", "mae"]
    assert scores["rmse"][0] == pytest.approx(sk.mean_squared_error(y, outputs) ** 0.5)
    assert scores["mae"][0] == pytest.approx(sk.mean_absolute_error(y, outputs))
    assert scores["r2"][0] == pytest.approx(sk.r2_score(y, outputs), rel=1e-6)
    assert task.lower == {"rmse", "mae", "pinball"}


def test_scores_of_a_quantile_are_its_loss_and_its_coverage() -> None:
    outputs, y = drawn(task := TASKS["quantile"], 50, 0)
    scores = task.scores(task.tally(outputs, y, np.zeros(50, int), 1))
    assert next(iter(scores)) == "pinball"
    assert scores["pinball"][0] == pytest.approx(sk.mean_pinball_loss(y, outputs, alpha=0.8))
    assert scores["coverage"][0] == pytest.approx((y <= outputs).mean())


def test_targets_that_do_not_vary_have_no_r2() -> None:
    task, y = Regression(outputs=1), np.full((9, 1), 7.1, np.float32)
    scores = task.scores(task.tally(np.zeros((9, 1)), y, np.zeros(9, int), 1))
    assert np.isnan(scores["r2"][0])
    assert scores["rmse"][0] == pytest.approx(7.1)
