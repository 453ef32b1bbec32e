"""The verdict: do clusters serve clients better than one model, or than a model of their own?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wecfl.core.types import F64
from wecfl.errors import ConfigError
from wecfl.runs.result import Result
from wecfl.runs.scores import Better, kind_of

__all__ = ["BASELINES", "Verdict", "verdict"]

BASELINES = {
    "fedavg": "one model",
    "local": "their own",
    "fedavg-ft": "one model that each fine-tunes",
}
"""The methods with which others are compared, and the model that they give a client."""
SCORED_ROUNDS = 3
"""The number of last rounds over which the scores of a client are averaged, as in the tables."""
SAME_SCORE = 1e-9
"""Scores that differ by at most this count as the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about one method, in words and numbers."""

    method: str
    score: str
    """The headline of the task, by which clients are compared."""
    better_is: Better
    clients: int
    """The number of clients that have this score."""
    better: dict[str, int]
    """For each baseline, the number of clients that the method serves better."""
    alike: dict[str, int]
    """For each baseline, the number of clients that the method serves equally well."""
    worst_decile: dict[str, float]
    """For this method and each baseline, the score of the worst-served tenth, as in the tables."""
    mean: dict[str, float]
    """For this method and each baseline, the mean score of the clients, as in the tables."""

    def __str__(self) -> str:
        """One line: how many clients are served better, the worst tenth, and the means."""
        parts = [
            f"{n}{f' of {self.clients} clients' * (not i)} better than {BASELINES[name]}"
            f"{f' ({self.alike[name]} as well)' * (self.alike[name] > 0)}"
            for i, (name, n) in enumerate(self.better.items())
        ]
        kind = kind_of(self.score, self.better_is)
        tenth = ", ".join(f"{name} {kind.text(score)}" for name, score in self.worst_decile.items())
        lines = [
            f"{self.method} serves {', '.join(parts)}; {kind.label} of the worst decile of "
            f"clients: {tenth}"
        ]
        own = self.mean[self.method]
        sign = 1 if self.better_is == "higher" else -1
        others = {name: score for name, score in self.mean.items() if name != self.method}
        best = max(others, key=lambda name: sign * others[name])
        if sign * (others[best] - own) >= -SAME_SCORE:
            lines.append(
                f"on average {BASELINES[best]} serves as well or better ({best} "
                f"{kind.text(others[best])}, {self.method} {kind.text(own)})"
            )
        return "; ".join(lines)


def verdict(results: Sequence[Result]) -> list[Verdict]:
    """A verdict about each method that is not a baseline, compared with the baselines in the list.

    All results must be of the same clients. A client counts if all methods tested it.

    >>> import wecfl
    >>> from wecfl import Config, run_config
    >>> config = Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False)
    >>> runs = [run_config(config.model_copy(update={"method": name}))
    ...         for name in ("wecfl", "fedavg", "local")]
    >>> print(*verdict(runs))
    wecfl serves ... of 6 clients better than one model...; accuracy of the worst decile of ...
    """
    names = [result.method.name for result in results]
    if len(set(names)) < len(names):
        raise ConfigError(f"give only one result of each method, got {', '.join(names)}")
    if len({tuple(result.federation.names) for result in results}) != 1:
        raise ConfigError("give results of the same clients: their names differ")
    headlines = [next(iter(result.better)) for result in results]
    if len(set(headlines)) != 1:
        raise ConfigError(
            f"give results of the same task: these are judged by {', '.join(headlines)}"
        )
    baselines = [name for name in BASELINES if name in names]
    if not baselines:
        raise ConfigError(f"give also the result of a baseline: {' or '.join(BASELINES)}")
    by_name = dict(zip(names, results, strict=True))
    scores = {name: _scores(result, headlines[0]) for name, result in by_name.items()}
    scored = ~np.isnan(list(scores.values())).any(axis=0)
    if not scored.any():
        return []
    kept = {name: values[scored] for name, values in scores.items()}
    return [
        _verdict(name, headlines[0], kept, [by_name[shown] for shown in (name, *baselines)])
        for name in names
        if name not in BASELINES
    ]


def _verdict(name: str, score: str, scores: dict[str, F64], shown: Sequence[Result]) -> Verdict:
    better_is = shown[0].better[score]
    sign = 1 if better_is == "higher" else -1
    gaps = {
        other: sign * (scores[name] - scores[other])
        for other in (result.method.name for result in shown[1:])
    }
    summaries = {result.method.name: result.summary for result in shown}
    return Verdict(
        name,
        score,
        better_is,
        len(scores[name]),
        {other: int((gap > SAME_SCORE).sum()) for other, gap in gaps.items()},
        {other: int((np.abs(gap) <= SAME_SCORE).sum()) for other, gap in gaps.items()},
        {method: summary["worst_decile"] for method, summary in summaries.items()},
        {method: summary[score] for method, summary in summaries.items()},
    )


def _scores(result: Result, name: str) -> F64:
    """(m,), the mean score of each client over the last rounds in which it was tested."""
    rows = [record["clients"][name] for record in result.records[-SCORED_ROUNDS:]]
    values = np.array(rows, np.float64).reshape(len(rows), len(result.labels))
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), np.float64)
