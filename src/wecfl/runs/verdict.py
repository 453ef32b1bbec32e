"""The verdict: do clusters serve clients better than one model, or than a model of their own?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wecfl.core.types import F64, Int
from wecfl.errors import ConfigError
from wecfl.runs.result import Result

__all__ = ["BASELINES", "Verdict", "verdict"]

BASELINES = {
    "fedavg": "one model",
    "local": "their own",
    "fedavg-ft": "one model that each fine-tunes",
}
"""The methods that others are compared with, and what they give a client."""
SCORED_ROUNDS = 3
"""The rounds, from the last, over which the scores of a client are averaged, as in the tables."""
SAME_SCORE = 1e-9
"""Scores that differ by no more are the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about one method, in words and numbers."""

    method: str
    clients: int
    """How many clients were tested."""
    better: dict[str, int]
    """By baseline how many clients the method serves better."""
    alike: dict[str, int]
    """By baseline how many clients it serves as well."""
    worst_decile: dict[str, float]
    """By method, this one and the baselines, the mean accuracy of the worst-served tenth."""
    mean: dict[str, float]
    """By method the mean accuracy of the clients, weighted by their training samples."""

    def __str__(self) -> str:
        """One line: how many clients are served better, the worst tenth, and the means."""
        parts = [
            f"{n}{f' of {self.clients} clients' * (not i)} better than {BASELINES[name]}"
            f"{f' ({self.alike[name]} as well)' * (self.alike[name] > 0)}"
            for i, (name, n) in enumerate(self.better.items())
        ]
        tenth = ", ".join(f"{name} {100 * each:.1f} %" for name, each in self.worst_decile.items())
        lines = [f"{self.method} serves {', '.join(parts)}; worst decile of clients: {tenth}"]
        own = self.mean[self.method]
        as_good = {
            name: each
            for name, each in self.mean.items()
            if name != self.method and each >= own - SAME_SCORE
        }
        if as_good:
            best = max(as_good, key=lambda name: as_good[name])
            lines.append(
                f"on average {BASELINES[best]} serves as well or better ({best} "
                f"{100 * as_good[best]:.1f} %, {self.method} {100 * own:.1f} %)"
            )
        return "; ".join(lines)


def verdict(results: Sequence[Result]) -> list[Verdict]:
    """A verdict about each method that is no baseline, beside the baselines among the results.

    All must be of the same clients. A client counts if all methods tested it.

    >>> import wecfl
    >>> from wecfl import Config, run_config
    >>> config = Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False)
    >>> runs = [run_config(config.model_copy(update={"method": name}))
    ...         for name in ("wecfl", "fedavg", "local")]
    >>> print(*verdict(runs))
    wecfl serves ... of 6 clients better than one model...; worst decile of clients: wecfl ...
    """
    names = [result.method.name for result in results]
    if len(set(names)) < len(names):
        raise ConfigError(f"give one result of each method, got {', '.join(names)}")
    if len({tuple(result.federation.names) for result in results}) != 1:
        raise ConfigError("give results of the same clients: their names differ")
    baselines = [name for name in BASELINES if name in names]
    if not baselines:
        raise ConfigError(f"give the result of a baseline too: {', '.join(BASELINES)}")
    scores = {result.method.name: _scores(result) for result in results}
    tested = ~np.isnan(list(scores.values())).any(axis=0)
    if not tested.any():
        return []
    sizes = results[0].federation.sizes[tested]
    kept = {name: each[tested] for name, each in scores.items()}
    return [_verdict(name, kept, baselines, sizes) for name in names if name not in BASELINES]


def _verdict(name: str, scores: dict[str, F64], baselines: Sequence[str], sizes: Int) -> Verdict:
    gaps = {other: scores[name] - scores[other] for other in baselines}
    shown = {each: scores[each] for each in (name, *baselines)}
    tenth = max(1, round(len(sizes) / 10))
    return Verdict(
        name,
        len(sizes),
        {other: int((gap > SAME_SCORE).sum()) for other, gap in gaps.items()},
        {other: int((np.abs(gap) <= SAME_SCORE).sum()) for other, gap in gaps.items()},
        {each: float(np.sort(values)[:tenth].mean()) for each, values in shown.items()},
        {each: float(np.average(values, weights=sizes)) for each, values in shown.items()},
    )


def _scores(result: Result) -> F64:
    """(m,), the mean accuracy of each client over the last rounds in which it was tested."""
    rows = [record["clients"]["accuracy"] for record in result.records[-SCORED_ROUNDS:]]
    values = np.array(rows, np.float64).reshape(len(rows), len(result.labels))
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), np.float64)
