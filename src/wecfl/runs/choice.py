"""The number of clusters that a run has chosen: the numbers for the summary, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wecfl.bilevel.clustering.auto import MIN_SILHOUETTE
from wecfl.bilevel.clustering.look import LEAST_SHARE, STANDARD_ERRORS
from wecfl.runs.record import Record

__all__ = ["choice_words", "last_choice"]

WEAK_SILHOUETTE = 0.25
"""A silhouette below this shows "no substantial structure" (Kaufman & Rousseeuw, 1990)."""
SERVICE_NOTES = ("chance", "alone", "gain", "error", "better", "uncertain", "clients")
"""The notes that exist if clients were asked how well clusters serve them (`clustering.served`)."""


def last_choice(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """The K that the clustering has chosen; empty if the method does not choose K.

    `k` has been the same since the round `since`, and was settled in the round `settled`. `best` is
    the K that was proposed when K was last chosen, and `silhouette` is its silhouette. If clients
    were asked how well clusters serve them, `asked` has the validation losses of one model for all
    (`one`) and of these clusters (`served`), and other notes of
    `wecfl.bilevel.clustering.served.Served`.

    >>> looked = {"k": 1, "settled": 0, "silhouette": [None, 0.1, 0.3]}
    >>> last_choice([{"round": 1, "notes": looked}, {"round": 2, "notes": looked}])
    {'choice': {'k': 1, 'since': 1, 'settled': None, 'best': 3, 'silhouette': 0.3}}
    >>> last_choice([{"round": 1}])
    {}
    """
    choices = [
        (record["round"], record["notes"]) for record in records if "k" in record.get("notes", {})
    ]
    if not choices:
        return {}
    looks = [notes for _, notes in choices if isinstance(notes.get("silhouette"), list)]
    last = looks[-1] if looks else {}
    k = int(choices[-1][1]["k"])
    others = [t for t, notes in choices if notes["k"] != k]
    scores = [-1.0 if score is None else score for score in last.get("silhouette", [])]
    best = int(last.get("proposed", np.argmax(scores) + 1 if scores else 1))
    choice = {
        "k": k,
        "since": max(others, default=choices[0][0] - 1) + 1,
        "settled": min((t for t, notes in choices if notes["settled"]), default=None),
        "best": best,
        "silhouette": scores[best - 1] if best > 1 else None,
    }
    if "loss" in last:
        losses = {"one": last["loss"][0], "served": last["loss"][best - 1]}
        choice["asked"] = losses | {name: last[name] for name in SERVICE_NOTES}
    return {"choice": choice}


def choice_words(choice: Mapping[str, Any]) -> str:
    """Why there is this number of clusters, if the server chose K.

    >>> asked = {"one": 1.3, "served": 0.6, "chance": 0.11, "alone": 0.9, "gain": 0.7,
    ...          "error": 0.02, "better": 0.98, "uncertain": 3, "clients": 120}
    >>> choice = {"k": 4, "since": 2, "settled": 2, "best": 4, "silhouette": 0.42, "asked": asked}
    >>> print(choice_words(choice))
    4 groups, found by round 2: silhouette 0.42 against 0.11 by chance; on held-out samples their \
models have the loss 0.6, one model for all 1.3, a model for each client 0.9; 98 % are served \
better than by one model; 3 of 120 clients are uncertain
    >>> unsure = asked | {"served": 1.2, "gain": 0.1, "error": 0.07}
    >>> print(choice_words(choice | {"k": 1, "asked": unsure}))
    one cluster: it is not certain that 4 clusters (silhouette 0.42, 0.11 by chance) serve \
held-out samples better than one model (loss 1.2 against 1.3: the gain is less than 2 standard \
errors of 0.07)
    >>> choice_words({"k": 10, "since": 1, "settled": 3, "best": 10, "silhouette": 0.694})
    'K = 10 chosen in round 1, settled in round 3: silhouette 0.69'
    >>> choice_words({"k": 1, "since": 1, "settled": None, "best": 9, "silhouette": 0.31})
    'no clear grouping, so all in one cluster: silhouette 0.31 at best (K = 9), 0.5 would be clear'
    """
    k, value = choice["k"], choice["silhouette"]
    if value is None:
        return f"K = {k}: too few clients to choose it, or not looked at yet"
    if asked := choice.get("asked"):
        return _served_words(choice, asked) if k > 1 else _one_words(choice, asked)
    if k > 1:
        settled = f"settled in round {choice['settled']}" if choice["settled"] else "not settled"
        shown = f": silhouette {value:.2f}"
        shown += f" (best: K = {choice['best']})" if choice["best"] != k else ""
        return f"K = {k} chosen in round {choice['since']}, {settled}{shown}"
    found = "clients are alike" if value < WEAK_SILHOUETTE else "no clear grouping"
    best = (
        f"silhouette {value:.2f} at best (K = {choice['best']}), {MIN_SILHOUETTE:g} would be clear"
    )
    return f"{found}, so all in one cluster: {best}"


def _served_words(choice: Mapping[str, Any], asked: Mapping[str, float]) -> str:
    """Why the clients are divided."""
    unsure, clients = int(asked["uncertain"]), int(asked["clients"])
    return (
        f"{choice['k']} groups, found by round {choice['since']}: "
        f"silhouette {choice['silhouette']:.2f} against {asked['chance']:.2f} by chance; "
        f"on held-out samples their models have the loss {asked['served']:.3g}, one model for all "
        f"{asked['one']:.3g}, a model for each client {asked['alone']:.3g}; "
        f"{100 * asked['better']:.0f} % are served better than by one model; "
        f"{unsure} of {clients} clients {'is' if unsure == 1 else 'are'} uncertain"
    )


def _one_words(choice: Mapping[str, Any], asked: Mapping[str, float]) -> str:
    """Why the clients are not divided."""
    best, one, served = choice["best"], f"{asked['one']:.3g}", f"{asked['served']:.3g}"
    silhouette, chance = f"{choice['silhouette']:.2f}", f"{asked['chance']:.2f}"
    clusters = f"{best} clusters (silhouette {silhouette}, {chance} by chance)"
    if 0 < asked["gain"] <= STANDARD_ERRORS * asked["error"]:
        return (
            f"one cluster: it is not certain that {clusters} serve held-out samples better than "
            f"one model (loss {served} against {one}: the gain is less than "
            f"{STANDARD_ERRORS:g} standard errors of {asked['error']:.2g})"
        )
    if asked["gain"] <= 0:
        return (
            f"one cluster: {clusters} would not serve held-out samples better than one model "
            f"(loss {served} against {one})"
        )
    if asked["gain"] < LEAST_SHARE * (asked["one"] - asked["alone"]):
        return (
            f"one cluster: clients differ one by one and have no groups; on held-out samples "
            f"{best} clusters have the loss {served}, one model {one}, and a model for each "
            f"client only {asked['alone']:.3g}: try fedavg-ft, ditto or local"
        )
    return (
        f"one cluster so far: {clusters} serve held-out samples better (loss {served} against "
        f"{one}), but looks have not agreed on K yet: run more rounds"
    )
