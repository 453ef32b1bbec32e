"""Transforms of the samples: feature skew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np

from wecfl.core.types import F32, F64
from wecfl.data.targets import Targets
from wecfl.data.transforms.transform import By, SampleKind, check_by, check_number
from wecfl.errors import PartitionError

__all__ = ["Affine", "Blur", "Contrast", "Hue", "Rotation", "SensorNoise"]


class _Angular(ABC):
    """The common part of transforms with an angle in degrees; group g has g · `step`."""

    __slots__ = ()

    name: ClassVar[str]
    step: float

    @abstractmethod
    def check_kind(self, kind: SampleKind) -> None:
        """Refuse samples that can't be turned in this way."""

    def of_groups(self, groups: int, kind: SampleKind, rng: np.random.Generator) -> list[float]:
        """Multiples of the step, from 0."""
        self.check_kind(kind)
        angles = [g * self.step % 360 for g in range(groups)]
        if len({round(angle, 6) for angle in angles}) < groups:
            raise PartitionError(
                f"{self.name} by steps of {self.step:g}° does not give {groups} different angles; "
                "ask for fewer groups or for a smaller step"
            )
        return angles

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> float:
        """A random multiple of the step below 360°."""
        self.check_kind(kind)
        return float(rng.integers(ceil(360 / self.step)) * self.step)


@dataclass(frozen=True, slots=True)
class Rotation(_Angular):
    """Turns images about their middle, counter-clockwise; group g by g · `step` degrees.

    Multiples of 90° only move pixels. Other angles are interpolated (bilinear), and pixels from
    outside of the image repeat its edge.

    >>> image = np.float32([[[[1, 2], [3, 4]]]])
    >>> Rotation()(90, image, np.array([0]), np.random.default_rng(0))[0].tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """

    step: float = 90.0
    by: By = "group"

    name: ClassVar[str] = "rotation"

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "step", 0, 360)

    def check_kind(self, kind: SampleKind) -> None:
        """Refuse anything but square images."""
        _check_image(self, kind)
        if kind.shape[1] != kind.shape[2]:
            raise PartitionError(f"rotation needs square images, got samples of shape {kind.shape}")

    def __call__(
        self, setting: float, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Turn each image by the angle."""
        if setting % 90 == 0:
            return np.rot90(x, int(setting // 90), axes=(-2, -1)), y
        return _turned(x, np.deg2rad(setting)), y


class _Graded(ABC):
    """The common part of transforms with a strength: zero in the first group, full in the last."""

    __slots__ = ()

    images_only: ClassVar[bool] = False

    def of_groups(self, groups: int, kind: SampleKind, rng: np.random.Generator) -> list[float]:
        """Strengths at equal distances."""
        return [self._at(level, kind) for level in np.linspace(0, 1, groups).tolist()]

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> float:
        """A strength drawn uniformly."""
        return self._at(rng.uniform(), kind)

    def _at(self, level: float, kind: SampleKind) -> float:
        if self.images_only:
            _check_image(self, kind)
        return self.strength(level)

    @abstractmethod
    def strength(self, level: float) -> float:
        """The strength at a level in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Contrast(_Graded):
    """Weakens the contrast: x ↦ a x, from a = 1 to a = `least`; −1 makes a negative.

    >>> Contrast(least=-1).of_groups(2, SampleKind((1, 8, 8), 10), np.random.default_rng(0))
    [1.0, -1.0]
    """

    least: float = 0.25
    by: By = "group"

    name: ClassVar[str] = "contrast"

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "least", -1, 1, includes_low=True)

    def strength(self, level: float) -> float:
        """The factor a."""
        factor = 1 + level * (self.least - 1)
        if abs(factor) < 1e-6:
            raise PartitionError(
                f"contrast(least={self.least:g}) would multiply the samples of a group by 0; ask "
                "for another number of groups"
            )
        return factor

    def __call__(
        self, setting: float, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Multiply each sample."""
        return x * np.float32(setting), y


@dataclass(frozen=True, slots=True)
class Blur(_Graded):
    """Blurs images with a Gaussian of deviation σ in pixels, from σ = 0 to σ = `width`.

    >>> dot = np.zeros((1, 1, 3, 3), np.float32); dot[0, 0, 1, 1] = 1
    >>> Blur()(0.5, dot, np.array([0]), np.random.default_rng(0))[0][0, 0, 1].round(2)
    array([0.08, 0.62, 0.08], dtype=float32)
    """

    width: float = 1.0
    by: By = "group"

    name: ClassVar[str] = "blur"
    images_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "width", 0, 100)

    def strength(self, level: float) -> float:
        """The deviation σ."""
        return level * self.width

    def __call__(
        self, setting: float, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Blur along columns, then along rows; outside of an image its edge is repeated."""
        if setting == 0:
            return x, y
        reach = ceil(3 * setting)
        weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / setting) ** 2)
        weights /= weights.sum()
        for axis in (-2, -1):
            size = x.shape[axis]
            places = np.clip(np.arange(-reach, size + reach), 0, size - 1)
            wide = np.take(x, places, axis=axis)
            parts = (
                np.float32(weight) * np.take(wide, np.arange(size) + shift, axis=axis)
                for shift, weight in enumerate(weights)
            )
            x = sum(parts, np.zeros_like(x))
        return x, y


@dataclass(frozen=True, slots=True)
class SensorNoise(_Graded):
    """Adds normal noise to every number of a sample, from σ = 0 to σ = `deviation`.

    >>> x, y = np.zeros((2, 2), np.float32), np.array([0, 1])
    >>> SensorNoise()(0.5, x, y, np.random.default_rng(0))[0].shape
    (2, 2)
    """

    deviation: float = 1.0
    by: By = "group"

    name: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "deviation", 0, 1e6)

    def strength(self, level: float) -> float:
        """The deviation σ."""
        return level * self.deviation

    def __call__(
        self, setting: float, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Add noise that is drawn for each sample."""
        return x + np.float32(setting) * rng.standard_normal(x.shape, np.float32), y


@dataclass(frozen=True, slots=True)
class Hue(_Angular):
    """Turns the colours of images about grey: red towards green; group g by g · `step` degrees.

    At 120° red becomes green, green blue, and blue red. Grey stays grey, and the mean of the three
    colours stays as it is.

    >>> red = np.float32([1, 0, 0]).reshape(1, 3, 1, 1)
    >>> Hue()(120, red, np.array([0]), np.random.default_rng(0))[0].ravel().round(3).tolist()
    [0.0, 1.0, 0.0]
    """

    step: float = 90.0
    by: By = "group"

    name: ClassVar[str] = "hue"

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "step", 0, 360)

    def check_kind(self, kind: SampleKind) -> None:
        """Refuse anything but images of three colours."""
        if len(kind.shape) != 3 or kind.shape[0] != 3:
            raise PartitionError(
                "hue needs images of three colours (3, height, width), got samples of shape "
                f"{kind.shape}; use contrast or affine"
            )

    def __call__(
        self, setting: float, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Mix the colours: each becomes a weighted sum of the three."""
        if setting == 0:
            return x, y
        thirds = np.deg2rad(setting) - np.arange(3) * 2 * np.pi / 3
        first = (1 + 2 * np.cos(thirds)) / 3  # how much of red is in the new red, green and blue
        mix = np.stack([np.roll(first, c) for c in range(3)], axis=1).astype(np.float32)
        return np.einsum("ij,njhw->nihw", mix, x).astype(np.float32), y


@dataclass(frozen=True, slots=True)
class Affine:
    """Another scale for each site: x_j ↦ exp(u_j) x_j + v_j, with u_j, v_j ~ N(0, spread²).

    Here j is the feature. In images j is the colour, so this changes brightness, contrast and tint.

    >>> u, v = Affine().of_client(SampleKind((3,), 2), np.random.default_rng(0))
    >>> u.shape, v.shape
    ((3,), (3,))
    """

    spread: float = 0.5
    by: By = "group"

    name: ClassVar[str] = "affine"

    def __post_init__(self) -> None:
        check_by(self)
        check_number(self, "spread", 0, 10)

    def of_groups(
        self, groups: int, kind: SampleKind, rng: np.random.Generator
    ) -> list[tuple[F64, F64]]:
        """A random map for each group."""
        return [self.of_client(kind, rng) for _ in range(groups)]

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> tuple[F64, F64]:
        """The logarithm u of the scale and the offset v of each feature or colour."""
        u, v = self.spread * rng.standard_normal((2, kind.shape[0]))
        return u, v

    def __call__(
        self, setting: tuple[F64, F64], x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Scale and move each feature or colour."""
        ones = (1,) * (x.ndim - 2)
        u, v = (part.astype(np.float32).reshape(-1, *ones) for part in setting)
        return x * np.exp(u) + v, y


def _turned(x: F32, angle: float) -> F32:
    """Images (…, H, W) turned by an angle in radians, with bilinear interpolation."""
    size = x.shape[-1]
    row, column = np.indices((size, size)) - (size - 1) / 2
    places = (row * np.cos(angle) + column * np.sin(angle),
              column * np.cos(angle) - row * np.sin(angle))  # fmt: skip
    r, c = (np.clip(place + (size - 1) / 2, 0, size - 1) for place in places)
    top, left = (np.minimum(place.astype(np.int64), size - 2) for place in (r, c))
    down, right = (r - top).astype(np.float32), (c - left).astype(np.float32)
    upper = x[..., top, left] * (1 - right) + x[..., top, left + 1] * right
    lower = x[..., top + 1, left] * (1 - right) + x[..., top + 1, left + 1] * right
    turned: F32 = upper * (1 - down) + lower * down
    return turned


def _check_image(transform: Any, kind: SampleKind) -> None:
    if len(kind.shape) != 3 or min(kind.shape[1:]) < 2:
        raise PartitionError(
            f"{transform.name} needs images (colours, height, width), got samples of shape "
            f"{kind.shape}"
        )
