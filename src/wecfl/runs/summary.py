"""Summarizes the records of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wecfl.core.state import Reply
from wecfl.core.types import Int8
from wecfl.runs.record import Record
from wecfl.runs.scores import scores_of

__all__ = ["best_round", "last_parts", "last_rounds", "replies", "settled"]


def replies(records: Sequence[Record], m: int) -> Int8:
    """(rounds, m), the outcome of each client's local update in each round (`Reply`).

    >>> replies([{"clients": {}}, {"clients": {"reply": [0, 1]}}], 2).tolist()
    [[0, 0], [0, 1]]
    """
    heard = [int(Reply.HEARD)] * m
    outcomes = [record["clients"].get("reply", heard) for record in records]
    return np.array(outcomes, np.int8).reshape(len(records), m)


def last_rounds(records: Sequence[Record], count: int = 3) -> dict[str, float | None]:
    """The means over the last rounds, as in the paper's tables: of scores, and of the ARI.

    >>> clients = {"accuracy": [0.5]}
    >>> last_rounds([{"accuracy": a, "worst_decile": a / 2, "ari": None, "clients": clients}
    ...              for a in (0.0, 0.5, 0.6, 0.7)])
    {'accuracy': 0.6, 'ari': None, 'worst_decile': 0.3}
    """
    means: dict[str, float | None] = {}
    names = scores_of(records[-1]) if records else []
    for key in (*names, "ari", "worst_decile"):
        last = [record.get(key) for record in records[-count:]]
        values = [value for value in last if value is not None]
        means[key] = round(float(np.mean(values)), 12) if values else None
    return means


def best_round(rounds: Sequence[int], scores: Sequence[float | None]) -> tuple[int, float] | None:
    """The round with the highest score, and that score; None if none is known.

    Many papers report it. It is optimistic, since the test data choose the round.

    >>> best_round([1, 2, 3], [0.5, 0.75, None])
    (2, 0.75)
    """
    known = [
        (score, -round) for round, score in zip(rounds, scores, strict=True) if score is not None
    ]
    if not known:
        return None
    score, round = max(known)
    return -round, score


def last_parts(
    records: Sequence[Record], name: str, count: int = 3
) -> dict[str, dict[str, float | None]]:
    """The means of one part of the records over the last rounds; empty if they do not have it.

    >>> attacks = [{"attack": {"isolated": share, "exposed": None}} for share in (0.5, 1.0)]
    >>> last_parts(attacks, "attack")
    {'attack': {'isolated': 0.75, 'exposed': None}}
    >>> last_parts([{}], "before")
    {}
    """
    parts = [record[name] for record in records[-count:] if name in record]
    if not parts:
        return {}
    values = {key: [part[key] for part in parts if part[key] is not None] for key in parts[0]}
    return {
        name: {
            key: round(float(np.mean(known)), 6) if known else None for key, known in values.items()
        }
    }


def settled(records: Sequence[Record]) -> int | None:
    """The round since which no client has changed its cluster; None if clients still do.

    >>> settled([{"round": t, "churn": churn} for t, churn in enumerate((0.8, 0.1, 0, 0), start=1)])
    2
    >>> settled([{"round": 1, "churn": 0.8}])
    """
    moved = [record["round"] for record in records if record["churn"]]
    last = max(moved, default=1)
    return last if records and (not moved or last < records[-1]["round"]) else None
