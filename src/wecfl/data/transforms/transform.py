"""What a transform is, and the checks of options that transforms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np

from wecfl.core.types import F32
from wecfl.data.targets import Targets
from wecfl.errors import ConfigError

__all__ = ["By", "SampleKind", "Transform", "check_by", "check_number"]

By = Literal["group", "client", "cross"]
"""Which clients share the setting of a transform."""


class SampleKind(NamedTuple):
    """What transforms must know about the samples to draw their settings."""

    shape: tuple[int, ...]
    """The shape of a sample."""
    classes: int
    """C, the number of classes; 0 if the targets are numbers."""


class Transform(Protocol):
    """What `Federation.transformed` needs: a frozen dataclass that draws settings and applies one.

    Both ways to draw raise an error if the samples can't be changed in this way.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    name: ClassVar[str]

    @property
    def by(self) -> By:
        """Which clients share a setting."""
        ...

    def of_groups(self, groups: int, kind: SampleKind, rng: np.random.Generator) -> Sequence[Any]:
        """The settings of the groups, which all differ."""
        ...

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> Any:
        """The setting of one client."""
        ...

    def __call__(
        self, setting: Any, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """The changed samples and targets of a client; the given arrays are not overwritten."""
        ...


def check_by(transform: Transform) -> None:
    """Refuse an unknown way to share settings.

    >>> from wecfl.data.transforms import Rotation
    >>> Rotation(by="site")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: rotation: by must be group, client or cross, got 'site'
    """
    if transform.by not in get_args(By):
        raise ConfigError(
            f"{transform.name}: by must be group, client or cross, got {transform.by!r}"
        )


def check_number(
    transform: Transform, option: str, low: float, high: float, *, includes_low: bool = False
) -> None:
    """Refuse an option that is not a number between the bounds.

    >>> from wecfl.data.transforms import Blur
    >>> Blur(width="much")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: blur: width must be a number above 0 and below 100, got 'much'
    """
    value = getattr(transform, option)
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not (low < value < high or (includes_low and value == low)):
        bounds = f"{'from' if includes_low else 'above'} {low:g} and below {high:g}"
        raise ConfigError(f"{transform.name}: {option} must be a number {bounds}, got {value!r}")
