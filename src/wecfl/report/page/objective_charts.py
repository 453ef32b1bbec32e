"""What was measured over the rounds of a run, as charts of the report page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wecfl.bilevel.auto import MIN_SILHOUETTE
from wecfl.report.page.line_charts import COLOR_COUNT, Series, Spec, Stroke, limit, lines, stroke
from wecfl.runs.record import CONDITION_KEYS, DIAGNOSTIC_KEYS, RECORD_KEYS, Record

__all__ = ["Chart", "choice", "objectives"]

LOOKS = 6
"""Rounds whose choice of K is drawn."""
ABOUT = RECORD_KEYS | DIAGNOSTIC_KEYS | CONDITION_KEYS
SCORES = ("accuracy", "macro_f1")
ELSEWHERE = {"round", *SCORES, "ari", "nmi", "clusters", "sizes", "seconds", "clients", "notes"}
"""Keys of a record that the page shows in other ways than as lines over the rounds."""
OBJECTIVES = {"F", "R", "B"}

Legend = Sequence[tuple[str, Stroke]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over rounds and what they are called."""

    title: str
    spec: Spec
    legend: Legend = ()
    about: str = ""


def objectives(records: Sequence[Record]) -> tuple[list[Chart], list[Chart]]:
    """F, R, B and the learning rate beside what the theory allows; and what else was measured."""
    rounds = [record["round"] for record in records]
    first = _drawn("F", _series([record.get("F") for record in records]), rounds, ABOUT["F"])
    for chart in (_learning, _clusterability, _rates):
        first += chart(records, rounds)
    more = []
    for key in dict.fromkeys(key for record in records for key in record):
        if key not in ELSEWHERE | OBJECTIVES:
            for name, values in _series([record.get(key) for record in records]).items():
                more += _drawn(f"{key} {name}".strip(), {name: values}, rounds, ABOUT.get(key, ""))
    gaps = {"gap": _of_clients(records, "gap")}
    return first, more + _drawn("gap", gaps, rounds, "‖g_i − G_k‖ before D, median client")


def _learning(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """R, and what Lemma 5 lets it be after L and Lemma 4 after D."""
    series = dict(_series([record.get("R") for record in records]))
    strokes = [stroke(i) for i in range(len(series))]
    about = ABOUT["R"]
    if _judged(records) and {"L", "D"} <= series.keys():
        after, sent = series["L"], [None, *series["D"][:-1]]
        series["L by Lemma 5"] = [*map(_sum, sent, _theory(records, "lemma_5"))]
        series["D by Lemma 4"] = [*map(_sum, after, _theory(records, "lemma_4"))]
        strokes += [limit(0), limit(1)]
        about = "the learning objective after L and D, and the most that the lemmas let it be"
    return _drawn("R", series, rounds, about, strokes)


def _clusterability(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """B of each cluster – of many, their extremes –, and below what Theorem 2 wants it."""
    found = [_worst(record.get("B")) for record in records]
    series = dict(_series(found))
    strokes = [stroke(i) for i in range(len(series))]  # the colours of the clusters
    if len(series) > COLOR_COUNT:
        spans: dict[str, Callable[[list[float]], float]] = {
            "largest": max, "median": lambda each: float(np.median(each)), "least": min,
        }  # fmt: skip
        known = [[value for value in each or () if value is not None] for each in found]
        series = {
            name: [span(each) if each else None for each in known] for name, span in spans.items()
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
        strokes.append(limit())
        about += "; Theorem 2 wants it below ‖∇L‖² / U² (here of the mean client)"
    return _drawn("B", series, rounds, about, strokes)


def _rates(records: Sequence[Record], rounds: Sequence[int]) -> list[Chart]:
    """η of the median client and the most that Theorems 1 and 2 allow it."""
    second = _of_clients(records, "lr_bound_2") if _judged(records) else [None] * len(rounds)
    series = {
        "used": _of_clients(records, "lr"),
        "Theorem 1": _positive(_of_clients(records, "lr_bound_1")),
        "Theorem 2": _positive(second),
    }
    about = "of the median client"
    if _judged(records):
        about += ", and the most that the theorems allow"
    none = sum(value is not None and value <= 0 for value in second)
    if none:
        about += f"; none is small enough for Theorem 2 in {none} of {len(rounds)} rounds"
    return _drawn("Learning rate", series, rounds, about, [stroke(0), limit(1), limit(2)])


def choice(records: Sequence[Record]) -> list[Chart]:
    """What the clustering wrote down: over K where it chose K, else over rounds."""
    told = [(record["round"], record.get("notes", {})) for record in records]
    looked = [(t, notes) for t, notes in told if isinstance(notes.get("silhouette"), list)]
    if not looked:
        rounds = [t for t, _ in told]
        names = dict.fromkeys(name for _, notes in told for name in notes if "k" not in notes)
        series = {name: _series([_several(notes.get(name)) for _, notes in told]) for name in names}
        return [
            chart
            for name, each in series.items()
            for chart in _drawn(f"{name.capitalize()} update", each, rounds, "norm, by cluster")
        ]
    shown = looked if len(looked) <= LOOKS else [*looked[: LOOKS - 1], looked[-1]]
    about = {"silhouette": f"clear from {MIN_SILHOUETTE:g} on", "bic": "nats per client"}
    charts = []
    for name, words in about.items():
        curves = {f"round {t}": notes[name] for t, notes in shown}
        most = max(map(len, curves.values()))
        padded = {t: [*curve, *[None] * (most - len(curve))] for t, curve in curves.items()}
        title = {"silhouette": "Silhouette", "bic": "BIC"}[name]
        charts += _drawn(title, padded, range(1, most + 1), words, over="K")
    return charts


def _drawn(
    title: str,
    series: Series,
    at: Sequence[int],
    about: str,
    strokes: Sequence[Stroke] | None = None,
    *,
    over: str = "round",
) -> list[Chart]:
    """The chart of those lines of which something is known, if there are any."""
    all_strokes = strokes or [stroke(i) for i in range(len(series))]
    known = {
        name: (values, own)
        for (name, values), own in zip(series.items(), all_strokes, strict=True)
        if any(value is not None for value in values)
    }
    if not known:
        return []
    own = [own for _, own in known.values()]
    spec = lines({name: values for name, (values, _) in known.items()}, at, strokes=own, over=over)
    return [Chart(title, spec, list(zip(known, own, strict=True)), about)]


def _series(values: Sequence[object]) -> Series:
    """One line for each number of what was measured in a round, however it is nested."""
    parts = [dict(_numbers(value)) for value in values]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [part.get(name) for part in parts] for name in names}


def _numbers(value: object, name: str = "") -> Iterator[tuple[str, float | None]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            yield from _numbers(inner, f"{name} cluster {k}".strip())
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield name, value


def _several(value: object) -> object:
    """Also of one cluster."""
    return [value] if isinstance(value, float | int) else value


def _worst(found: Mapping[str, Sequence[float | None]] | None) -> list[float | None] | None:
    """Of each cluster, the larger of B before and after the local update."""
    if found is None:
        return None
    pairs = zip(*found.values(), strict=True)
    return [max((b for b in pair if b is not None), default=None) for pair in pairs]


def _judged(records: Sequence[Record]) -> bool:
    """The theory is about this run: it was measured, and clients are compared by their models."""
    return any(record["clients"].get("lr_bound_1") is not None for record in records)


def _theory(records: Sequence[Record], key: str) -> list[Any]:
    return [record.get("theory", {}).get(key) for record in records]


def _of_clients(records: Sequence[Record], key: str) -> list[float | None]:
    """The median over the clients, round by round; None where nothing is known."""
    each = [[v for v in record["clients"].get(key) or () if v is not None] for record in records]
    return [float(np.median(values)) if values else None for values in each]


def _positive(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None or value <= 0 else value for value in values]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
