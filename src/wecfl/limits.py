"""The largest numbers that a user can mean, and checks of whole, positive and other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from numbers import Integral
from typing import Any

from wecfl.errors import ConfigError

__all__ = [
    "MAX_COUNT",
    "MAX_SEED",
    "check_at_least_one",
    "check_kinds",
    "check_not_negative",
    "check_positive",
    "check_whole",
]

MAX_COUNT = 1_000_000
"""The largest number of rounds, steps, clients and so on. A larger one must be a mistake."""

MAX_SEED = 2**128 - 1
"""The largest seed."""


def check_whole(**numbers: tuple[Any, int]) -> None:
    """Raise an error for a value that is not a whole number, or too small, or too large.

    Values are given as (value, minimum). The maximum is 1,000,000; for a `seed` it is 2¹²⁸ − 1.

    >>> check_whole(rounds=(1.5, 1))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: rounds must be a whole number from 1 to 1000000, got 1.5
    """
    for name, (number, minimum) in numbers.items():
        maximum = MAX_SEED if name == "seed" else MAX_COUNT
        if not isinstance(number, Integral) or not minimum <= int(number) <= maximum:
            raise ConfigError(
                f"{name} must be a whole number from {minimum} to {maximum}, got {number!r}"
            )


def check_at_least_one(**numbers: int | None) -> None:
    """Raise an error for a number below 1; None, which stands for a default, is no error.

    >>> check_at_least_one(steps=None, clients=0)
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: clients must be at least 1, got 0
    """
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}")


def check_positive(**numbers: float) -> None:
    """Raise an error for a number that is not positive and finite.

    >>> check_positive(server_lr=0.0)
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: server_lr must be positive and finite, got 0.0
    """
    for name, number in numbers.items():
        if not 0 < number < inf:
            raise ConfigError(f"{name} must be positive and finite, got {number}")


def check_not_negative(**numbers: float) -> None:
    """Raise an error for a number that is negative or not finite.

    >>> check_not_negative(mu=float("nan"))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: mu must be finite and not negative, got nan
    """
    for name, number in numbers.items():
        if not 0 <= number < inf:
            raise ConfigError(f"{name} must be finite and not negative, got {number}")


def check_kinds(owner: object, required: Mapping[str, type], optional: Mapping[str, type]) -> None:
    """Refuse fields of an object that are not values of these classes; optional ones may be None.

    >>> class Owner: plan = 3
    >>> check_kinds(Owner, {"plan": str}, {})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: plan must be a value such as str(…), got 3
    """
    for name, kind in {**required, **optional}.items():
        value = getattr(owner, name)
        if not isinstance(value, kind) and not (value is None and name in optional):
            raise ConfigError(f"{name} must be a value such as {kind.__name__}(…), got {value!r}")
