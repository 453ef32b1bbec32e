"""The programs that clients know by name, and how a program is sent to a client.

A program is sent as its registered name, its version and its options in JSON, never as code.
`register` adds your own, on the server and at every client.
"""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256
from typing import Any, TypeVar

from wecfl.bilevel.clustering.updates import PulledSteps
from wecfl.bilevel.local.dane import NewtonSteps
from wecfl.bilevel.local.evaluating import ClusterLosses, Gradients, Risk, Score
from wecfl.bilevel.local.feature_contrast import ContrastSteps
from wecfl.bilevel.local.interpolated_models import InterpolatedSteps
from wecfl.bilevel.local.masks import PrunedSteps
from wecfl.bilevel.local.meta import MetaGradient, MetaSteps
from wecfl.bilevel.local.mixture import AddedSteps, MixtureSteps, SoftSteps
from wecfl.bilevel.local.moreau_envelope import MoreauSteps
from wecfl.bilevel.local.prototypes import PrototypeSteps
from wecfl.bilevel.local.training import Alone, Ditto, Only, Parts, Train
from wecfl.bilevel.representation.telling import (
    Directions,
    InitialUpdate,
    Labels,
    LocalCenters,
    Moments,
    Predictions,
)
from wecfl.bilevel.representation.trial import Trial
from wecfl.bilevel.serving import SERVINGS
from wecfl.core.components import Serving
from wecfl.core.program import Program
from wecfl.errors import ConfigError, unknown

__all__ = ["PROGRAMS", "decoded", "digest", "encoded", "register"]

TRAINING_PROGRAMS: tuple[type[Program], ...] = (
    Train, Alone, Ditto, Parts, Only, MetaSteps, MetaGradient, MoreauSteps, InterpolatedSteps,
    NewtonSteps, Trial, MixtureSteps, SoftSteps, AddedSteps, PrototypeSteps, ContrastSteps,
    PulledSteps, PrunedSteps,
)  # fmt: skip
EVALUATING_PROGRAMS: tuple[type[Program], ...] = (ClusterLosses, Risk, Gradients, Score)
TELLING_PROGRAMS: tuple[type[Program], ...] = (
    Directions, InitialUpdate, Labels, Predictions, Moments, LocalCenters,
)  # fmt: skip
PROGRAMS: dict[str, type[Program]] = {
    kind.name: kind for kind in (*TRAINING_PROGRAMS, *EVALUATING_PROGRAMS, *TELLING_PROGRAMS)
}
"""The programs that clients know, by name."""

Kind = TypeVar("Kind", bound=type[Program] | type[Serving])


def register(kind: Kind) -> Kind:
    """Register your own program or serving under its name; each client must register it too."""
    known = SERVINGS if hasattr(kind, "moments") else PROGRAMS
    if {**PROGRAMS, **SERVINGS}.get(kind.name, kind) is not kind:
        raise ConfigError(f"another program is registered as '{kind.name}': choose another name")
    known[kind.name] = kind
    return kind


def encoded(value: Any) -> Any:
    """A program or a serving as JSON: its name, its version and its options.

    >>> encoded(Train(mu=0.5))
    {'name': 'train', 'version': 1, 'mu': 0.5}
    """
    if not hasattr(value, "name"):
        return value
    kind = type(value)
    if {**PROGRAMS, **SERVINGS}.get(value.name) is not kind:
        raise ConfigError(
            f"clients do not know the program {kind.__name__}: register it here and at each "
            f"client, by wecfl.bilevel.programs.register({kind.__name__})"
        )
    options = {option.name: encoded(getattr(value, option.name)) for option in fields(value)}
    return {"name": value.name, "version": value.version, **options}


def decoded(value: Any) -> Any:
    """The program or serving that was `encoded`; an error if it is unknown or of another version.

    >>> decoded({"name": "train", "version": 1, "mu": 0.5})
    Train(mu=0.5)
    """
    if not isinstance(value, dict):
        return value
    known: dict[str, Any] = {**PROGRAMS, **SERVINGS}
    given = dict(value)
    name, version = given.pop("name", None), given.pop("version", None)
    if name not in known:
        raise ConfigError(unknown("program", str(name), known))
    kind = known[name]
    if version != kind.version:
        raise ConfigError(
            f"the program {name} has version {kind.version} here, but version {version} was asked "
            f"for: install the same release of wecfl at the server and at the clients"
        )
    options = {option.name for option in fields(kind)}
    if other := {*given} - options:
        raise ConfigError(unknown(f"option of {name}", sorted(other)[0], options))
    return kind(**{key: decoded(option) for key, option in given.items()})


def digest() -> str:
    """A digest that is equal if two sides know the same programs in the same versions."""
    known = sorted((name, kind.version) for name, kind in {**PROGRAMS, **SERVINGS}.items())
    return sha256(repr(known).encode()).hexdigest()[:16]
