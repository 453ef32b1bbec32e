"""Scales each client by the statistics of its cluster, which a first run finds.

Clusters are found by training, and training needs scaled samples. So there are two runs:

1. All clients are scaled in the same way, and the method runs until its clusters have settled, at
   most for all rounds.
2. Each client is scaled by the merged statistics of its cluster. The method begins again with these
   clusters, which do not change: a client that changed its cluster would get a model for samples of
   another scale.

A cluster's scaling belongs to its model: `predict`, the exported graph and the endpoint begin with
it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wecfl.bilevel.clustering import Held
from wecfl.core.method import Method
from wecfl.core.types import Int
from wecfl.core.until import Settled
from wecfl.data.federation import Federation
from wecfl.data.fitting import rescaled_samples
from wecfl.errors import ConfigError
from wecfl.folder import checkpoint
from wecfl.options import Folder, Rounds

if TYPE_CHECKING:
    from wecfl.experiment.assembly import Experiment

__all__ = ["check", "held_labels", "held_method", "resolved"]


def check(experiment: Experiment) -> None:
    """Refuse choices that are not possible together with scaling by cluster."""
    federation, method = experiment.federation, experiment.method
    pipeline = federation.pipeline if isinstance(federation, Federation) else None
    if pipeline is None or pipeline.clusters is None:
        return
    late = experiment.conditions.participation < 1 or experiment.conditions.dropout > 0
    problems = {
        "the clusters of newcomers are found from scaled samples": experiment.newcomers,
        f"{method.name} runs {method.members} times, each with other clusters": method.members > 1,
        f"clients of {method.name} are served by several models": not method.serve.center_alone,
        "some clients may be heard first after the clusters are found": late,
        "diagnostics check how clusters are found": experiment.measure.diagnostics,
    }
    if found := [problem for problem, holds in problems.items() if holds]:
        raise ConfigError(
            f"scale_by cluster is not possible here, since {found[0]}: set scale_by to all or "
            "client"
        )


def held_labels(experiment: Experiment) -> Int | None:
    """(m,), the clusters by which the members are scaled; None: the method finds clusters."""
    federation = experiment.federation
    pipeline = federation.pipeline if isinstance(federation, Federation) else None
    if pipeline is None or not pipeline.clusters:
        return None
    known = dict(pipeline.clusters)
    return np.array([known[name] for name in experiment.members.names], np.int64)


def held_method(experiment: Experiment) -> Method:
    """The method; if clients are scaled by their clusters, its E-step does not change these."""
    method, labels = experiment.method, held_labels(experiment)
    if labels is None:
        return method
    return method.replace(k=int(labels.max()) + 1, clustering=Held(), judge=None)


def resolved(experiment: Experiment) -> Experiment:
    """The experiment with clients scaled by their clusters, if that was chosen.

    A first run finds the clusters. If the run is resumed, they are in its checkpoint.
    """
    federation = experiment.federation
    if not isinstance(federation, Federation) or not federation.pipeline:
        return experiment
    if federation.pipeline.clusters != ():
        return experiment
    place = Folder.of(experiment.folder)
    saved = checkpoint.latest(Path(place.path)) if place and place.resume else None
    if saved is None:
        alike = replace(federation, pipeline=replace(federation.pipeline, clusters=None))
        rounds = Rounds(Rounds.of(experiment.rounds).count, Settled())
        first = replace(experiment, federation=alike, rounds=rounds, folder=None, watch=()).run()
        found = first.labels
        logging.getLogger("wecfl").info(
            "wecfl: scaled by cluster: %d clusters were found in %d rounds, and stay",
            len(np.unique(found)), len(first.records),
        )  # fmt: skip
    else:
        found = saved.states[0].labels
    labels = np.unique(found, return_inverse=True)[1]
    held = zip(federation.train, federation.test, strict=True)
    x, pipeline = rescaled_samples(
        federation.x, dict(zip(federation.names, held, strict=True)), federation.pipeline, labels
    )
    return replace(experiment, federation=replace(federation, x=x, pipeline=pipeline))
