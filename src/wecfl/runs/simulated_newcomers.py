"""Simulated newcomers: clients that are kept out of a run, and how well they are assigned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from wecfl import metrics
from wecfl.channel.attacks import choose
from wecfl.core.clients import Clients
from wecfl.core.types import Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.runs.newcomers import Assignment

__all__ = ["newcomer_summary", "newcomer_table", "separated"]


def separated(
    federation: Federation | Clients, share: float | None, unseen: int | None, seed: int
) -> tuple[Federation | Clients, Federation | None]:
    """Members and newcomers. Newcomers are a share of the clients, and all of an unseen group.

    >>> xs, ys = [np.zeros((4, 1))] * 5, [[0, 1, 0, 1]] * 5
    >>> fed = Federation.from_arrays(xs, ys, groups=[0, 0, 0, 1, 1])
    >>> members, newcomers = separated(fed, 0.3, unseen=1, seed=0)
    >>> members.names, newcomers.names
    (('0', '1'), ('2', '3', '4'))
    """
    if share is None and unseen is None:
        return federation, None
    if not isinstance(federation, Federation):
        raise ConfigError(
            "newcomers are simulated, which needs the clients' data: give a Federation, or leave "
            "out newcomers"
        )
    apart = np.zeros(len(federation), np.bool_)
    if unseen is not None:
        if federation.groups is None:
            raise ConfigError(
                "unseen is the number of a hidden group, but the clients have no known groups: "
                "leave out unseen"
            )
        apart = federation.groups == unseen
        if not apart.any() or apart.all():
            known = ", ".join(map(str, np.unique(federation.groups)))
            raise ConfigError(
                f"unseen must be one of the groups {known}, and not the only one, got {unseen}"
            )
    if share is not None:
        apart[~apart] = choose(federation.keys[~apart], share, seed, "newcomers")
    if not apart.any():
        return federation, None
    return federation.subset(np.flatnonzero(~apart)), federation.subset(np.flatnonzero(apart))


def newcomer_table(found: Sequence[Assignment], groups: Int | None = None) -> pd.DataFrame:
    """One row per newcomer, as in `newcomers.csv`."""
    names = ["client", "samples", "cluster", "confidence", "distance", "loss", "novelty", "limit"]
    names += ["found"] if any(newcomer.by == "inputs" for newcomer in found) else []
    columns = {name: [getattr(newcomer, name) for newcomer in found] for name in [*names, "novel"]}
    scored = list(dict.fromkeys(name for newcomer in found for name in newcomer.scores))
    scores = {name: [newcomer.scores.get(name) for newcomer in found] for name in scored}
    frame = pd.DataFrame(columns | scores)
    frame.insert(2, "group", None if groups is None else groups)
    return frame


def newcomer_summary(
    newcomers: pd.DataFrame, members: pd.DataFrame, unseen: int | None, *, score: str = "accuracy"
) -> dict[str, float | None]:
    """How well newcomers were assigned, as in `summary.json`.

    `right` is the share of newcomers whose cluster has mostly members of their own group. `score`
    names the headline; `members` is the headline of the members of the same clusters, weighted by
    the newcomers in each cluster. Newcomers of the `unseen` group have no right cluster, and count
    only for `recall`.

    >>> members = pd.DataFrame({"samples": 1, "group": [4, 4, 5], "cluster": [0, 0, 1],
    ...                         "accuracy": [0.8, 0.6, 1.0]})
    >>> new = pd.DataFrame({"samples": 1, "group": [4, 5, 9], "cluster": [0, 0, 1],
    ...                     "accuracy": [0.7, 0.5, 0.0], "novel": [False, False, True]})
    >>> newcomer_summary(new, members, unseen=9)
    {'clients': 3, 'novel': 1, 'right': 0.5, 'accuracy': 0.6, 'members': 0.7,
     'recall': 1.0, 'false_alarms': 0.0}
    """
    known = bool(newcomers["group"].notna().all())
    from_unseen = (newcomers["group"] == unseen) & (unseen is not None)
    seen, novel = newcomers[~from_unseen], newcomers[from_unseen]
    scored = members.dropna(subset=score)
    hits = (scored[score] * scored["samples"]).groupby(scored["cluster"]).sum()
    usual = hits / scored.groupby("cluster")["samples"].sum()
    right = None
    if known and len(seen):
        main = members.groupby("cluster")["group"].agg(lambda group: group.mode().iloc[0])
        right = float((seen["cluster"].map(main) == seen["group"]).mean())

    def mean(values: pd.Series[float]) -> float | None:
        return metrics.weighted(np.asarray(values, np.float64), seen["samples"].to_numpy())

    found = {
        "right": right,
        score: mean(seen[score]),
        "members": mean(seen["cluster"].map(usual)),
        "recall": float(novel["novel"].mean()) if len(novel) else None,
        "false_alarms": float(seen["novel"].mean()) if known and len(seen) else None,
    }
    rounded = {key: None if value is None else round(value, 12) for key, value in found.items()}
    return {"clients": len(newcomers), "novel": int(newcomers["novel"].sum()), **rounded}
