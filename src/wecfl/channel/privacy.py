"""Differential privacy of what a client sends: clipped updates with Gaussian noise.

Clustering needs every client's own model, so the noise can't be added to a mean. Instead, each
client clips its update Δ = ω − Ω_k to length C and adds noise N(0, (z·C)²·I) itself, before
anything leaves it (local differential privacy). A clipped update lies in a ball of radius C, so the
updates for two data sets differ by at most 2C. Hence each reply is a Gaussian mechanism with noise
multiplier z/2, and the replies of n rounds are n such mechanisms, composed. What the server
computes from the replies, such as clusters and centers, costs no further privacy. A client that
takes part in only some rounds gets no credit for random sampling, since the server knows which
clients took part.

In a simulation the noise follows from the seed, so that a run can be repeated: it shows what noise
would cost, and protects nobody. Over a network the noise comes from the client's operating system,
and the client counts what leaves it (`wecfl.flower.guard`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from wecfl import rng
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.core.types import F32, F64, Bool, Int
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_not_negative, check_positive

__all__ = ["Privacy", "check_private", "check_same_privacy", "epsilon_of", "system_normals"]

RENYI_ORDERS = (1 + np.geomspace(1e-3, 1e4, 500)).tolist()
"""The orders α of the Rényi divergences that are tried."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """Clip to length `clip` (C), and add noise of standard deviation `noise`·C to every column.

    >>> start, trained = np.zeros((2, 2), np.float32), np.array([[3, 4], [0.3, 0.4]], np.float32)
    >>> everyone, keys = np.ones(2, bool), np.arange(2)
    >>> Privacy(clip=1.0, noise=0.0)(start, trained, everyone, keys, round=0, seed=0)
    array([[0.6, 0.8],
           [0.3, 0.4]], dtype=float32)
    >>> round(Privacy(clip=1.0, noise=10.0).epsilon(replies=1), 2)
    0.79
    """

    clip: float
    noise: float = 0.0
    delta: float = field(default=1e-5, repr=False)
    """δ, for which the privacy budget ε is reported; it changes nothing else."""

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie in (0, 1), got {self.delta}")
        check_positive(clip=self.clip)
        check_not_negative(noise=self.noise)

    def __call__(
        self, start: F32, trained: F32, clients: Bool, keys: Int, *, round: int, seed: int
    ) -> F32:
        """(m, P), the rows of these clients as they are sent; the other rows are unchanged."""
        private = trained.copy()
        for i in np.flatnonzero(clients):
            draws = rng.stream(seed, "privacy", round, int(keys[i]))
            private[i] = self.protected(start[i], trained[i], draws.standard_normal)
        return private

    def protected(self, start: F32, trained: F32, normals: Callable[[int], F64]) -> F32:
        """(P,), a model as its client sends it; `normals(P)` draws the noise.

        An update that is not finite counts as no update: its length could not be limited.
        """
        update = trained.astype(np.float64) - start
        length = float(np.linalg.norm(update))
        if not np.isfinite(length):
            update, length = np.zeros_like(update), 0.0
        update *= min(1.0, self.clip / length) if length > 0 else 1.0
        if self.noise:
            update += self.noise * self.clip * normals(len(update))
        return (start + update).astype(np.float32)

    def epsilon(self, replies: int) -> float:
        """ε of (ε, δ), for a client that has sent this number of replies."""
        return epsilon_of({self.noise: replies}, self.delta)


def epsilon_of(replies: Mapping[float, int], delta: float) -> float:
    """ε of (ε, δ), for a client that sent `replies[z]` replies with each noise multiplier z.

    The Rényi divergences of the replies are added up, and turned into ε (both by Opacus).

    >>> epsilon_of({10.0: 2, 5.0: 0}, 1e-5) == Privacy(clip=1.0, noise=10.0).epsilon(replies=2)
    True
    """
    counted = {noise: count for noise, count in replies.items() if count}
    if not counted:
        return 0.0
    if 0 in counted:
        return float("inf")
    try:
        from opacus.accountants.analysis import rdp  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"privacy needs an extra: pip install 'wecfl[privacy]' ({error})"
        ) from None
    spent = sum(
        rdp.compute_rdp(q=1.0, noise_multiplier=noise / 2, steps=count, orders=RENYI_ORDERS)
        for noise, count in counted.items()
    )
    with warnings.catch_warnings():
        # The warning is about orders at the ends of the range, where ε is useless or 0.
        warnings.filterwarnings("ignore", "Optimal order")
        epsilon, _ = rdp.get_privacy_spent(orders=RENYI_ORDERS, rdp=spent, delta=delta)
    return float(epsilon)


def system_normals(count: int) -> F64:
    """(count,), standard normal numbers from the randomness of the operating system.

    They do not follow from a seed, so that nobody can draw them again. Each is the normal quantile
    of a uniform number of 53 bits.

    >>> bool(abs(system_normals(10_000).std() - 1) < 0.1)
    True
    """
    from scipy.special import ndtri  # noqa: PLC0415  (most clients do not need it)

    bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    quantiles: F64 = ndtri((bits + 0.5) / 2.0**53)
    return quantiles


def check_private(method: Method, layout: Layout, **measured: bool) -> None:
    """Refuse what the noise would not protect, and what it would make useless.

    `measured` says which other quantities clients would be asked for, without any protection.

    >>> from wecfl import methods
    >>> check_private(methods.ifca(2), Layout.of([("w", (1,), ["head"])]))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: clients of ifca tell the server which model fits them best, which no \
noise protects: choose a method that clusters by models
    """
    if method.representation.asks:
        raise ConfigError(
            f"clients of {method.name} tell the server which model fits them best, which no noise "
            f"protects: choose a method that clusters by models"
        )
    if method.judge:
        raise ConfigError(
            f"clients of {method.name} would tell the server how well models serve them, which no "
            f"noise protects: set criterion to both, which judges by the models alone"
        )
    asks = [step for step in (*method.opening, *method.steps) if isinstance(step, Ask)]
    programs = [step.program or method.local for step in asks] + [method.local]
    programs += [method.representation.tells] if method.representation.tells else []
    replies = {name: reply for program in programs for name, reply in program.replies.items()}
    if other := [name for name, reply in replies.items() if not reply.update]:
        raise ConfigError(
            f"clients of {method.name} reply '{other[0]}' in addition to their update, which no "
            f"noise protects: choose a method whose clients reply updates only"
        )
    if any(step.program for step in asks):
        raise ConfigError(
            f"clients of {method.name} are asked more than once in a round, or before the first "
            f"round, which the privacy budget does not count: choose another method"
        )
    if asked := [name for name, wanted in measured.items() if wanted]:
        raise ConfigError(
            f"{' and '.join(asked)} would ask clients for losses, gradients or statistics, which "
            f"no noise protects: leave out {' and '.join(asked)}, or leave out clip"
        )
    shared = np.arange(layout.width)[layout.columns(method.shared)]
    if (shared >= layout.trainable).any():
        raise ConfigError(
            "this model has BatchNorm statistics or frozen parameters, which noise would make "
            "useless: with privacy, choose a model without them"
        )


def check_same_privacy(engine: object, privacy: Privacy | None) -> None:
    """Refuse an engine whose clients add different noise from what an experiment asks for.

    >>> check_same_privacy(object(), None)
    """
    if getattr(engine, "privacy", None) != privacy:
        raise ConfigError(
            "the clients of this engine do not add the noise that the experiment asks for: "
            "give the same privacy to both"
        )
