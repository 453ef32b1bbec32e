"""Programs: what clients do, in the place where their data are.

A program works row by row, where a row belongs to a client. So the bits of a result are the same
whether each client is at its own node of a network, blocks of clients are with actors and threads,
or all clients are together. `Field`s declare what a program keeps and what it replies. Checks,
refusals, attacks, privacy and the wire format follow from these declarations. A program is sent as
its registered name, its version and its options, never as code. The programs of the library are in
`wecfl.bilevel.local`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wecfl.core.plan import Correction, FeatureTerm, LocalPlan
from wecfl.core.types import F32, F64, Bool, Int, Int8, Split, Table
from wecfl.layout import Layout

__all__ = [
    "Answers",
    "Ensemble",
    "Field",
    "FitsAny",
    "Job",
    "KeepsNothing",
    "Program",
    "ReplyAndMemory",
    "Sent",
    "Site",
    "needs_of",
    "private_columns",
]


ReplyAndMemory = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""What a program gives back: the reply (n, …), which is sent to the server, and the memory (n, …),
which stays with the clients."""


@dataclass(frozen=True, slots=True)
class Field:
    """Declares an array with one row for each client, which a program keeps or replies.

    >>> Field(("K", 2)).sized({"K": 3})
    (3, 2)
    """

    shape: tuple[int | str, ...]
    """The shape of a row. `P` is the width of a model, `trainable` the number of its leading
    columns that are trained, `buffer` the length of the optimizer's buffer, `K` the number of
    models sent, `C` the number of classes whose priors are sent (otherwise the number of outputs of
    the last linear layer), `D` the number of features, and `tally` the shape of the task's tally.
    """
    dtype: str = "float32"
    start: Literal["zero", "received"] = "zero"
    """The value of memory at the first contact, and again after a result that is not finite: zeros,
    or the model that was received (then the shape is `P`)."""
    update: bool = False
    """Whether a reply is the model that was sent, after training. For privacy, such a reply is
    clipped and gets noise; attackers forge it; and it is refused if the update is far too long."""

    def sized(self, sizes: Mapping[str, int | tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of a row in numbers."""
        sized = [sizes[axis] if isinstance(axis, str) else axis for axis in self.shape]
        return tuple(n for axis in sized for n in (axis if isinstance(axis, tuple) else (axis,)))


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the server sends to n clients."""

    own: Table = field(default_factory=dict)
    """(n, …), a row for each client; `model` is the model to start from or to evaluate. A program
    that keeps memory may overwrite it."""
    common: Table = field(default_factory=dict)
    """What is the same for all clients; `models` (K, P) are the models of the clusters."""

    def take(self, which: slice | Int) -> Sent:
        """What some of the clients are sent."""
        return Sent({name: rows[which] for name, rows in self.own.items()}, self.common)


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """J models that predict together for each of n clients."""

    models: F32
    """(n, J, P)."""
    mixture: F64 | None = None
    """(n, J), the weights with which their predictions (for classes: probabilities) are mixed.
    None: their outputs are added."""


class Site(Protocol):
    """The place where a program runs: n clients and their data, in one round of a run."""

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""

    @property
    def sizes(self) -> Int:
        """(n,), |D_i|."""

    @property
    def round(self) -> int:
        """t, the number of rounds that were done before."""

    def train(
        self,
        rows: F32,
        plan: LocalPlan,
        *,
        correction: Correction = ...,
        velocity: F32 | None = None,
        free: Bool | None = None,
        part: slice = ...,
        repeat: int = 1,
        weights: F32 | None = None,
        bias: F32 | None = None,
        term: FeatureTerm | None = None,
        out: F32 | None = None,
    ) -> tuple[F32, F32 | None]:
        """Train each row: the rows (n, P) and the optimizer's buffers (n, buffer) after the steps.

        `part` says which of the round's steps are taken: equal parts use the same batches. Each
        batch is used for `repeat` steps, which count as one. Only the columns that are `free` (P,)
        change, including BatchNorm's running statistics; the other columns also keep their
        momentum. The buffer (`LocalPlan.buffer`) starts from `velocity`, or from zero; it is None
        if the optimizer has none. The rows are written to `out`, which may be `rows`; without
        `out`, to a new matrix.

        `weights` (N,) are factors of the samples' losses, and `bias` (N, C) is added to the outputs
        of the model. Both are in the order of `samples`, whatever batch a sample is in. A `term`
        is added to the loss.
        """

    def samples(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The inputs (N, …) and targets (N, …) of all N training samples, client by client.

        `sizes` says how many of them each client has.
        """

    def outputs(self, rows: F32) -> F32:
        """(N, C), the outputs of each client's own row for its training samples."""

    def features(self, rows: F32) -> F32:
        """(N, D), the inputs of the last linear layer of each client's own row for its samples."""

    def sample_losses(self, models: F32) -> F64:
        """(N, K), the loss of each training sample under each of K models."""

    def losses(self, models: F32, batches: int | None = None) -> F64:
        """(n, K), the mean training loss of each of K models on each client's data.

        With `batches`, it is estimated on this number of mini-batches of the round.
        """

    def risk(self, rows: F32, split: Split = "train", batches: int | None = None) -> F64:
        """(n,), the mean loss L(ω_i, D_i) of each client's own row.

        With `batches`, it is estimated on this number of mini-batches of the training data, which
        are drawn for the round.
        """

    def gradients(self, rows: F32, batches: int | None = None) -> F32:
        """(n, trainable), ∇L(ω_i, D_i), the gradient of `risk`, with BatchNorm in the same mode."""

    def tally(self, rows: F32 | Ensemble, split: Split) -> F64:
        """(n, …), the task's tallies of models (n, P), or of (n, J, P) that predict together."""


class Program(Protocol):
    """What clients are asked to do: a frozen dataclass, whose fields are its options.

    A program may also have `needs`, a set of what an engine must offer to run it (`needs_of`).
    """

    name: ClassVar[str]
    version: ClassVar[int]

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """What a client keeps until it is asked again, by name."""

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error, before clients are asked, if the plan or the model does not fit."""

    @property
    def replies(self) -> Mapping[str, Field]:
        """What a client sends back, by name."""

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The reply (n, …) and the new memory (n, …), with all fields that are declared."""


class FitsAny:
    """What programs share that fit every plan and every model."""

    __slots__ = ()

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Accept every plan and every model."""


class KeepsNothing:
    """What programs share after which a client remembers nothing."""

    __slots__ = ()

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """Nothing."""
        return {}


def needs_of(program: Program) -> frozenset[str]:
    """What an engine must offer to run a program, such as `features`; usually nothing."""
    return frozenset(getattr(program, "needs", ()))


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What clients are asked to do in one exchange; it is the same for all clients."""

    program: Program
    plan: LocalPlan = field(default_factory=LocalPlan)
    """Its η and number of steps may have an entry for each client that is asked."""
    seed: int = 0
    round: int = 0
    tick: int = 0
    """The version of the memory from which the program starts."""
    shared: str = "all"
    """The columns that are exchanged; the others stay at the client."""
    keep: bool = False
    """Whether the new memory replaces the old one. An evaluation never changes it."""
    met: Bool | None = None
    """(n,), the clients that should have memory from an earlier exchange; None: none of them."""
    in_place_above: float = inf
    """If the old memory has more bytes than this, the new one may be written into its arrays."""

    def keeps(self, layout: Layout) -> dict[str, Field]:
        """What stays at a client: what the program keeps, and the private columns."""
        kept = dict(self.program.keeps(self.plan))
        if (private := private_columns(layout, self.shared)) is not None:
            kept["private"] = Field((len(private),), start="received")
        return kept

    def sizes(
        self, layout: Layout, sent: Sent | None = None, tally: tuple[int, ...] = ()
    ) -> dict[str, int | tuple[int, ...]]:
        """The values of the words in the shape of a `Field`."""
        models, priors = (sent.common.get(name) if sent else None for name in ("models", "priors"))
        return {
            "P": layout.width, "trainable": layout.trainable, "buffer": self.plan.buffer(layout),
            "K": 0 if models is None else len(models),
            "C": layout.head[0] if priors is None else priors.shape[1], "D": layout.head[1],
            "tally": tally,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What came back from the n clients that were asked."""

    rows: dict[str, NDArray[Any]]
    """(n, …), by the names that the program declares. Rows of clients without a reply have no
    meaning."""
    outcome: Int8
    """(n,), a `Reply` for each client."""
    memory: Table = field(default_factory=dict)
    """(m, …), the memory of all clients, if they are simulated; empty over a network."""


def private_columns(layout: Layout, shared: str) -> Int | None:
    """The columns that stay at the client; None if all columns are shared.

    >>> private_columns(Layout.of([("a", (2,), []), ("b", (1,), [])]), "a")
    array([2])
    """
    if shared == "all":
        return None
    mask = np.ones(layout.width, dtype=np.bool_)
    mask[layout.columns(shared)] = False
    return np.flatnonzero(mask) if mask.any() else None
