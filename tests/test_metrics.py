"""Scores of clusterings beside scikit-learn and beside brute force."""

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples
from sklearn.metrics.pairwise import cosine_similarity

from helpers import run_flat
from wecfl import Federation, methods, metrics
from wecfl.runs.summary import settled

labelings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


@given(labelings)
def test_churn_is_the_least_over_all_renamings(pairs: list[tuple[int, int]]) -> None:
    after, before = np.array(pairs).T
    least = min((np.array(names)[after] != before).mean() for names in permutations(range(4)))
    assert metrics.churn(after, before) == pytest.approx(least)


@given(
    st.lists(st.one_of(st.floats(-5, 5), st.just(np.nan)), min_size=1, max_size=40), st.booleans()
)
def test_the_worst_decile_is_the_mean_of_the_worst_tenth(scores: list[float], lower: bool) -> None:
    known = sorted((s for s in scores if not np.isnan(s)), reverse=lower)
    worst = known[: -(-len(known) // 10)]
    found = metrics.worst_decile(np.array(scores), lower=lower)
    assert found == (pytest.approx(np.mean(worst)) if worst else None)


def test_the_worst_decile_and_the_clusters_scores_are_in_record_and_summary() -> None:
    rng = np.random.default_rng(0)
    ys = [rng.integers(0, 3, 30) for _ in range(12)]
    federation = Federation.from_arrays([rng.normal(size=(30, 2)) for _ in ys], ys)
    result = run_flat(federation, methods.wecfl(k=2), rounds=4, lr=0.1, model="logistic")
    own = np.array(result.records[-1]["clients"]["accuracy"])
    assert result.records[-1]["worst_decile"] == pytest.approx(np.sort(own)[:2].mean(), abs=1e-6)
    tested = np.array([len(rows) for rows in federation.test])
    pooled = [
        np.average(own[result.labels == k], weights=tested[result.labels == k]) for k in (0, 1)
    ]
    assert result.records[-1]["cluster_scores"] == pytest.approx(pooled, abs=1e-5)
    last = [record["worst_decile"] for record in result.records[-3:]]
    assert result.summary["worst_decile"] == pytest.approx(np.mean(last))
    assert result.summary["scores"] == {"accuracy": "higher", "macro_f1": "higher"}


def test_cosine_similarity_is_that_of_scikit_learn_over_pairs() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 5)).astype(np.float32) + np.float32(1)
    centers, labels = rng.normal(size=(6, 5)), rng.integers(0, 5, 30)  # the last has no client
    found = metrics.cosine(points, centers, labels)
    table = cosine_similarity(points.astype(np.float64))
    own = [table[i, j] for i, j in combinations(range(30), 2) if labels[i] == labels[j]]
    among = cosine_similarity(centers[:5])[np.triu_indices(5, 1)]
    assert found["intra"] == pytest.approx(np.mean(own))
    assert found["inter"] == pytest.approx(np.mean(among))
    assert metrics.cosine(points[:2], centers, np.array([0, 1]))["intra"] is None
    assert metrics.cosine(points, centers, np.zeros(30, np.int64))["inter"] is None


def test_silhouette_is_defined_only_between_one_and_all() -> None:
    points = np.random.default_rng(1).normal(size=(6, 3))
    labels = np.array([0, 0, 1, 1, 4, 4])
    assert metrics.silhouette(points, labels) == pytest.approx(
        silhouette_samples(points, labels).mean()
    )
    assert metrics.silhouette(points, np.zeros(6, np.int64)) is None
    assert metrics.silhouette(points, np.arange(6)) is None


@pytest.mark.parametrize(
    ("churns", "round"),
    [([0.5, 0, 0], 1), ([0, 0], 1), ([0.5, 0.1, 0], 2), ([0.5, 0, 0.1], None), ([], None)],
)
def test_settled_names_the_round_whose_assignment_was_kept(
    churns: list[float], round: int | None
) -> None:
    records = [{"round": t, "churn": churn} for t, churn in enumerate(churns, start=1)]
    assert settled(records) == round


def test_a_run_records_how_its_clusters_hold_together(fed: Federation) -> None:
    how: dict[str, Any] = {"model": "logistic", "lr": 0.05, "workers": 1, "diagnostics": True}
    result = run_flat(fed, methods.wecfl(k=2), rounds=4, **how)
    first, *later = result.records
    assert first["churn"] == pytest.approx(2 / 5)  # everyone shared one cluster before
    assert [record["churn"] for record in later] == [0, 0, 0]
    assert result.summary["settled"] == 1
    for record in result.records:
        assert -1 <= record["cosine"]["inter"] < record["cosine"]["intra"] <= 1
        assert record["silhouette"] > 0
