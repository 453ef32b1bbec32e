"""Sentences about a run: its data, its rounds, the choice of K, and what a reader must not miss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wecfl.core.types import Int
from wecfl.runs.choice import choice_words
from wecfl.runs.drift_summary import drift_words
from wecfl.runs.scores import ScoreKind, headline_of, kind_of, scores_of

OFTEN_REFUSED_SHARE = 0.1
"""A client whose replies were refused in a larger share of the rounds is named."""
MAX_NAMED_CLIENTS = 10
"""The largest number of clients that are named."""

__all__ = ["client_words", "partition_words", "remarks", "round_words",
           "score_words"]  # fmt: skip


def partition_words(config: Mapping[str, Any]) -> str:
    """The name of the partition with its parameters, and what else was done to the clients' data.

    >>> partition_words({"partition": "clusterwise-dirichlet", "alpha": (0.1, 10.0)})
    'clusterwise-dirichlet(0.1, 10)'
    >>> partition_words({"partition": "iid", "transform": ["rotation"], "mixture": 0.2})
    'iid, rotation, mixed 20 %'
    """
    numbers = config.get("alpha") or config.get("classes_per") or ()
    inside = f"({', '.join(f'{n:g}' for n in numbers)})" if numbers else ""
    mixture = [f"mixed {config['mixture']:.0%}".replace("%", " %")] if config.get("mixture") else []
    drift = [f"drift {config['drift']}"] if config.get("drift") else []
    seen = config.get("transform") or ()
    return ", ".join([f"{config['partition']}{inside}", *seen, *mixture, *drift])


def client_words(sizes: Int, groups: Int | None) -> str:
    """How many clients, groups and samples there are: |D_i| (m,), the groups (m,) if known.

    >>> client_words(np.array([10, 30]), np.array([0, 1]))
    '2 clients in 2 groups, 20 ± 10 training samples'
    """
    hidden = "" if groups is None else f" in {len(np.unique(groups))} groups"
    samples = f"{sizes.mean():.0f} ± {sizes.std():.0f} training samples"
    return f"{len(sizes):,} clients{hidden}, {samples}"


def round_words(record: Mapping[str, Any]) -> str:
    """A round over a network: replies, clusters and the headline.

    >>> round_words({"sizes": [3, 1], "accuracy": 0.5, "clients": {"accuracy": [0.5] * 4},
    ...              "replies": {"heard": 3}, "network": {"refused": [["b", "NaN"]], "late": 2}})
    '3 of 4 replies; 1 refused; 2 late; clusters of 3, 1 clients; accuracy 50.0 %'
    """
    score = scores_of(record)[0]
    network, m = record.get("network", {}), len(record["clients"][score])
    heard = record["replies"]["heard"] if "replies" in record else m
    words = [
        f"{heard} of {m} replies",
        *(f"{len(network[key])} {key}" for key in ("refused", "joined") if key in network),
        *([f"{network['late']} late"] if "late" in network else []),
        f"clusters of {', '.join(map(str, record['sizes']))} clients",
        score_words(score, record[score]),
    ]
    return "; ".join(words)


def remarks(summary: Mapping[str, Any], refused: Mapping[str, int]) -> list[str]:
    """What a reader must not miss, from the choice of K to refusals.

    `refused` counts, for each client, the rounds in which its reply was refused.

    >>> for line in remarks({"rounds": 10, "attack": {"isolated": 0.5, "exposed": 0.25}},
    ...                     {"a": 7, "b": 1}):
    ...     print(line)
    under attack: 50 % of attackers in clusters of their own, 25 % of honest clients beside one
    8 replies refused (not finite, or too long for refuse_above): look at client a (7 of 10 rounds)
    """
    lines = [choice_words(summary["choice"])] if summary.get("choice") else []
    lines += [drift_words(summary["drift"])] if summary.get("drift") else []
    if reason := summary.get("stopped"):
        lines.append(f"stopped after round {summary['rounds']}: {reason}")
    name, kind = headline_of(summary)
    if (before := summary.get("before")) and before[name] is not None:
        lines.append(f"before local adaptation: {score_words(name, before[name])}")
    if attack := summary.get("attack"):
        found = [
            f"{100 * attack[key]:.0f} % {words}"
            for key, words in (
                ("isolated", "of attackers in clusters of their own"),
                ("exposed", "of honest clients beside one"),
                ("success", "of triggers work"),
            )
            if attack.get(key) is not None
        ]
        lines.append(f"under attack: {', '.join(found)}")
    if privacy := summary.get("privacy"):
        epsilon = privacy["epsilon"]
        lines.append(
            "no privacy: updates are clipped, but without noise"
            if epsilon is None
            else f"privacy of a client's {privacy['replies']} replies: ε = {epsilon:.3g} "
            f"at δ = {privacy['delta']:g}"
        )
    if newcomers := summary.get("newcomers"):
        lines.append(_newcomer_words(newcomers, name, kind))
    if total := sum(refused.values()):
        rounds = summary["rounds"]
        worst = sorted(refused.items(), key=lambda item: -item[1])
        often = [
            f"{name} ({n} of {rounds} rounds)"
            for name, n in worst
            if n > OFTEN_REFUSED_SHARE * rounds
        ]
        shown = ", ".join(often[:MAX_NAMED_CLIENTS]) + (
            f" and {len(often) - MAX_NAMED_CLIENTS} more" * (len(often) > MAX_NAMED_CLIENTS)
        )
        why = "not finite, or too long for refuse_above"
        lines.append(
            f"{total} replies refused ({why})" + (f": look at client {shown}" if often else "")
        )
    return lines


def score_words(name: str, value: float | None) -> str:
    """A score with its name.

    >>> score_words("accuracy", 0.5), score_words("rmse", None)
    ('accuracy 50.0 %', 'RMSE unknown')
    """
    kind = kind_of(name)
    return f"{kind.label} {'unknown' if value is None else kind.text(value)}"


def _newcomer_words(newcomers: Mapping[str, Any], name: str, kind: ScoreKind) -> str:
    found = [f"{newcomers['novel']} of {newcomers['clients']} unlike any cluster"]
    for key, words in (
        ("right", "in the right group"),
        ("recall", "of the unseen group found novel"),
        ("false_alarms", "of the others taken for novel"),
    ):
        if newcomers[key] is not None and (
            key != "false_alarms" or newcomers["recall"] is not None
        ):
            found.append(f"{100 * newcomers[key]:.1f} % {words}")
    if None not in (newcomers[name], newcomers["members"]):
        own, others = kind.text(newcomers[name]), kind.text(newcomers["members"])
        found.append(f"{kind.label} {own}, of members of the same clusters {others}")
    return f"newcomers: {', '.join(found)}"
