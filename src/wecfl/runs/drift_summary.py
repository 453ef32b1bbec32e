"""Drift in a run, and whether it was found: numbers for the summary, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wecfl.runs.record import Record

__all__ = ["drift_words", "last_drift"]

MAX_LISTED_CLIENTS = 15
"""The largest number of clients that are named."""
LATE_ROUNDS = 5
"""If drift is found up to this number of rounds after it happened, it is not a false alarm."""


def last_drift(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Which clients drifted and which were found, over all rounds; empty if there was no drift.

    `rounds` are the rounds in which data changed, and `changed` is the number of clients whose data
    changed. If the method looks for drift, `found` is the number of these clients that were found,
    and `at_once` the number that were found in the round of the change. `moved` is the number of
    clients that got another cluster, and `who` are their numbers. `alarms` counts how often other
    clients were found, and `looks` how often they could have been.

    >>> records = [{"round": 1, "clients": {"accuracy": [1.0] * 3}, "drift": {"found": [2]}},
    ...            {"round": 2, "clients": {"accuracy": [1.0] * 3},
    ...             "drift": {"changed": [0], "found": [0], "moved": [0]}}]
    >>> last_drift(records)["drift"]
    {'rounds': [2], 'changed': 1, 'found': 1, 'at_once': 1, 'moved': 1, 'alarms': 1, 'looks': 5,
     'who': [0]}
    """
    drifts = [(record["round"], record["drift"]) for record in records if "drift" in record]
    if not drifts:
        return {}
    changes = {t: set(drift["changed"]) for t, drift in drifts if "changed" in drift}
    changed = set().union(*changes.values())
    summary: dict[str, Any] = {"rounds": list(changes), "changed": len(changed)}
    looks = [(t, set(drift["found"])) for t, drift in drifts if "found" in drift]
    if looks:
        recent = {
            t: {i for at, who in changes.items() if at <= t <= at + LATE_ROUNDS for i in who}
            for t, _ in looks
        }
        moved = {i for _, drift in drifts for i in drift.get("moved", ())}
        m = len(next(iter(records[0]["clients"].values())))
        summary |= {
            "found": len(set().union(*(found & recent[t] for t, found in looks))),
            "at_once": len(set().union(*(found & changes.get(t, set()) for t, found in looks))),
            "moved": len(moved),
            "alarms": sum(len(found - recent[t]) for t, found in looks),
            "looks": sum(m - len(recent[t]) for t, _ in looks),
            "who": sorted(moved),
        }
    return {"drift": summary}


def drift_words(drift: Mapping[str, Any]) -> str:
    """One sentence: which clients drifted, which were found, and which changed their cluster.

    >>> drift_words({"rounds": [12], "changed": 12})
    'the data of 12 clients changed in round 12; nothing looked for it (--recluster drift does)'
    >>> drift_words({"rounds": [12, 13], "changed": 12, "found": 11, "at_once": 8, "moved": 10,
    ...              "alarms": 2, "looks": 1000, "who": [3, 4]})
    'the data of 12 clients changed in rounds 12 to 13: 11 were found, 8 of them at once, \
10 clients moved to another cluster (3, 4); 2 false alarms in 1000 looks (0.2 %)'
    """
    rounds, count = drift["rounds"], drift["changed"]
    when = f"rounds {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[:1]}"
    when = when.replace("[", "").replace("]", "")
    what = f"the data of {count} {'client' if count == 1 else 'clients'} changed in {when}"
    if "found" not in drift:
        return f"{what}; nothing looked for it (--recluster drift does)"
    moved = f"{drift['moved']} {'client' if drift['moved'] == 1 else 'clients'} moved to another"
    share = 100 * drift["alarms"] / max(drift["looks"], 1)
    named = ", ".join(map(str, drift["who"][:MAX_LISTED_CLIENTS])) + " …" * (
        len(drift["who"]) > MAX_LISTED_CLIENTS
    )
    moved += f" cluster ({named})" if named else " cluster"
    rate = f"in {drift['looks']} looks ({share:.2g} %)"
    if not rounds:
        return f"drift was found {drift['alarms']} times {rate}; {moved}"
    return (
        f"{what}: {drift['found']} were found, {drift['at_once']} of them at once, {moved}; "
        f"{drift['alarms']} false alarms {rate}"
    )
