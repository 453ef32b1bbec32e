"""Charts of a run: its objectives beside their bounds, other measurements, the choice of K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wecfl.bilevel.clustering.auto import MIN_SILHOUETTE
from wecfl.report.page.line_charts import (
    COLOR_COUNT,
    Series,
    Spec,
    Stroke,
    bound_stroke,
    line_chart,
    stroke,
)
from wecfl.report.tables.results import MAX_SHOWN_SCORES
from wecfl.runs.json_values import leaves
from wecfl.runs.record import (
    CONDITION_KEYS,
    DIAGNOSTIC_KEYS,
    FLEET_KEYS,
    RECORD_KEYS,
    Record,
)
from wecfl.runs.scores import scores_of

__all__ = ["Chart", "choice_charts", "drawn", "objective_charts"]

MAX_DRAWN_CHOICES = 6
"""The largest number of rounds whose choice of K is drawn."""
DESCRIPTIONS = RECORD_KEYS | DIAGNOSTIC_KEYS | CONDITION_KEYS
KEYS_SHOWN_ELSEWHERE = {
    "round",
    "ari",
    "nmi",
    "clusters",
    "sizes",
    "seconds",
    "clients",
    "cluster_scores",
    "notes",
    *FLEET_KEYS,
}
"""Keys of a record that are not drawn here: the page shows them in other ways."""
OBJECTIVES = {"F", "R", "R_estimate", "B"}

Legend = Sequence[tuple[str, Stroke]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart with its title, its legend and an explanation."""

    title: str
    spec: Spec
    legend: Legend = ()
    about: str = ""


def objective_charts(records: Sequence[Record]) -> tuple[list[Chart], list[Chart]]:
    """F, R, B and the learning rate beside their bounds; then everything else that was measured."""
    rounds = [record["round"] for record in records]
    first = drawn("F", _series([record.get("F") for record in records]), rounds, DESCRIPTIONS["F"])
    for make_chart in (_r_chart, _b_chart, _rate_chart):
        first += make_chart(records, rounds)
    more = []
    curves = {name for record in records for name in scores_of(record)[:MAX_SHOWN_SCORES]}
    for key in dict.fromkeys(key for record in records for key in record):
        if key not in KEYS_SHOWN_ELSEWHERE | OBJECTIVES | curves:
            for name, values in _series([record.get(key) for record in records]).items():
                more += drawn(
                    f"{key} {name}".strip(), {name: values}, rounds, DESCRIPTIONS.get(key, "")
                )
    gaps = {"gap": _median_client(records, "gap")}
    return first, more + drawn("gap", gaps, rounds, "‖g_i − G_k‖ before D, median client")


def _r_chart(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """R, with the bounds of Lemma 5 after L and of Lemma 4 after D; or else its estimate."""
    if not any(record.get("R") for record in records):
        estimates = _series([record.get("R_estimate") for record in records])
        return drawn("R, estimated", estimates, rounds, DESCRIPTIONS["R_estimate"])
    series = dict(_series([record.get("R") for record in records]))
    strokes = [stroke(i) for i in range(len(series))]
    about = DESCRIPTIONS["R"]
    if _judged(records) and {"L", "D"} <= series.keys():
        after, sent = series["L"], [None, *series["D"][:-1]]
        series["L by Lemma 5"] = [*map(_sum, sent, _theory(records, "lemma_5"))]
        series["D by Lemma 4"] = [*map(_sum, after, _theory(records, "lemma_4"))]
        strokes += [bound_stroke(0), bound_stroke(1)]
        about = "the learning objective after L and D, and the most that the lemmas let it be"
    return drawn("R", series, rounds, about, strokes)


def _b_chart(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """B of each cluster (of many clusters: the extremes), with the bound of Theorem 2."""
    found = [_worst(record.get("B")) for record in records]
    series = dict(_series(found))
    strokes = [stroke(i) for i in range(len(series))]  # the colours of the clusters
    if len(series) > COLOR_COUNT:
        spans: dict[str, Callable[[list[float]], float]] = {
            "largest": max, "median": lambda values: float(np.median(values)), "least": min,
        }  # fmt: skip
        known = [[value for value in values or () if value is not None] for values in found]
        series = {
            name: [span(values) if values else None for values in known]
            for name, span in spans.items()
        }
        strokes = [stroke(i) for i in range(len(series))]
    about = "clusterability of each cluster, before or after L, whichever is larger"
    squares = [
        None if value is None else min(value.values()) for value in _theory(records, "gradient")
    ]
    wanted = [
        square / U**2 if square is not None and U else None
        for square, U in zip(squares, _theory(records, "U_round"), strict=True)
    ]
    if series and _judged(records) and any(value is not None for value in wanted):
        series["‖∇L‖² / U²"] = wanted
        strokes.append(bound_stroke())
        about += "; Theorem 2 wants it below ‖∇L‖² / U² (here of the mean client)"
    return drawn("B", series, rounds, about, strokes)


def _rate_chart(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """η of the median client, with the bounds of Theorems 1 and 2."""
    second = _median_client(records, "lr_bound_2") if _judged(records) else [None] * len(rounds)
    series = {
        "used": _median_client(records, "lr"),
        "Theorem 1": _positive(_median_client(records, "lr_bound_1")),
        "Theorem 2": _positive(second),
    }
    about = "of the median client"
    if _judged(records):
        about += ", and the most that the theorems allow"
    none = sum(value is not None and value <= 0 for value in second)
    if none:
        about += f"; none is small enough for Theorem 2 in {none} of {len(rounds)} rounds"
    return drawn(
        "Learning rate", series, rounds, about, [stroke(0), bound_stroke(1), bound_stroke(2)]
    )


UPDATE_NORMS = ("mean", "largest")
"""The notes of CFL, which splits a cluster whose mean update is short and whose largest is long."""


def choice_charts(records: Sequence[Record]) -> list[Chart]:
    """Why there are so many clusters: scores over K if K was chosen, CFL's norms over the rounds.

    >>> choice_charts([{"round": 1, "notes": {"unchanged": 3.0}}])     # says nothing about K
    []
    """
    noted = [(record["round"], record.get("notes", {})) for record in records]
    chosen = [(t, notes) for t, notes in noted if isinstance(notes.get("silhouette"), list)]
    if not chosen:
        rounds = [t for t, _ in noted]
        series = {
            name: _series([_several(notes.get(name)) for _, notes in noted])
            for name in UPDATE_NORMS
        }
        return [
            chart
            for name, lines in series.items()
            for chart in drawn(f"{name.capitalize()} update", lines, rounds, "norm, by cluster")
        ]
    shown = chosen
    if len(chosen) > MAX_DRAWN_CHOICES:
        shown = [*chosen[: MAX_DRAWN_CHOICES - 1], chosen[-1]]
    about = {
        "silhouette": ("Silhouette", f"clear from {MIN_SILHOUETTE:g} on"),
        "bic": ("BIC", "nats per client"),
    }
    if "loss" in chosen[0][1]:
        about = {
            "loss": ("Loss on held-out samples", "of the models that K clusters would have"),
            "silhouette": ("Silhouette", "which K is the clearest, of those that serve alike"),
        }
    charts = []
    for name, (title, words) in about.items():
        curves = {f"round {t}": notes[name] for t, notes in shown}
        max_k = max(map(len, curves.values()))
        padded = {t: [*curve, *[None] * (max_k - len(curve))] for t, curve in curves.items()}
        charts += drawn(title, padded, range(1, max_k + 1), words, over="K")
    return charts


def drawn(
    title: str,
    series: Series,
    at: Sequence[int],
    about: str,
    strokes: Sequence[Stroke] | None = None,
    *,
    over: str = "round",
    percent: bool = False,
) -> list[Chart]:
    """A chart of the lines that have at least one known value; no chart if there are none."""
    all_strokes = strokes or [stroke(i) for i in range(len(series))]
    known = {
        name: (values, own)
        for (name, values), own in zip(series.items(), all_strokes, strict=True)
        if any(value is not None for value in values)
    }
    if not known:
        return []
    own = [own for _, own in known.values()]
    spec = line_chart(
        {name: values for name, (values, _) in known.items()}, at, strokes=own, over=over,
        percent=percent,
    )  # fmt: skip
    return [Chart(title, spec, list(zip(known, own, strict=True)), about)]


def _series(values: Sequence[object]) -> Series:
    """One line for each number that was measured in a round, however deep it is nested."""
    parts = [
        {
            name: number
            for name, number in leaves(value, between=" ", item="cluster {}")
            if number is None or (isinstance(number, int | float) and not isinstance(number, bool))
        }
        for value in values
    ]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [part.get(name) for part in parts] for name in names}


def _several(value: object) -> object:
    """The values of all clusters as a list, also if there is one cluster."""
    return [value] if isinstance(value, float | int) else value


def _worst(found: Mapping[str, Sequence[float | None]] | None) -> list[float | None] | None:
    """For each cluster, the larger one of B before and B after the local update."""
    if found is None:
        return None
    pairs = zip(*found.values(), strict=True)
    return [max((b for b in pair if b is not None), default=None) for pair in pairs]


def _judged(records: Sequence[Record]) -> bool:
    """Whether the theory covers this run: it was measured, and clients are compared by models."""
    return any(record["clients"].get("lr_bound_1") is not None for record in records)


def _theory(records: Sequence[Record], key: str) -> list[Any]:
    return [record.get("theory", {}).get(key) for record in records]


def _median_client(records: Sequence[Record], key: str) -> list[float | None]:
    """The median over the clients in each round; None where nothing is known."""
    by_round = [
        [v for v in record["clients"].get(key) or () if v is not None] for record in records
    ]
    return [float(np.median(values)) if values else None for values in by_round]


def _positive(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None or value <= 0 else value for value in values]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
