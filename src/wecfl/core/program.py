"""What a client does: a program, called where the data is, over the clients that are held there.

A program works row by row, so that clients may be held one by one at the nodes of a network, in
blocks by actors and threads, or all at once: the bits are the same. It says by `Field`s what it
keeps and what it replies; checks, refusal, attacks, privacy and the wire format follow from these.
It travels as its registered name, its version and its options, never as code (`wecfl.bilevel.local`
holds those that come with the library).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.types import F32, F64, Bool, Int, Int8, Split, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = [
    "Answers",
    "Field",
    "Job",
    "Program",
    "ReplyAndMemory",
    "Sent",
    "Site",
    "perform",
    "private_columns",
]


ReplyAndMemory = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""What a program gives back: the reply (n, …), which is sent to the server, and the memory (n, …),
which stays with the clients."""


@dataclass(frozen=True, slots=True)
class Field:
    """Declares one array per client, which a program keeps or replies.

    >>> Field(("K", 2)).sized({"K": 3})
    (3, 2)
    """

    shape: tuple[int | str, ...]
    """`P`, `trainable`, `K` and `tally` stand for the width of a model, how many leading columns of
    it are trained, the models that were sent, and the shape of a tally of the task."""
    dtype: str = "float32"
    start: Literal["zero", "received"] = "zero"
    """Of memory at the first contact, and after a result that was not finite: zeros, or (of width
    P) the model that was received."""
    update: bool = False
    """Of a reply: it is what became of the model that was sent. This is what noise and clipping
    protect, attackers forge, and the server refuses if it is far too long."""

    def sized(self, sizes: Mapping[str, int | tuple[int, ...]]) -> tuple[int, ...]:
        """The shape in numbers."""
        known = [sizes[n] if isinstance(n, str) else n for n in self.shape]
        return tuple(n for each in known for n in (each if isinstance(each, tuple) else (each,)))


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the server sends to n clients."""

    own: Table = field(default_factory=dict)
    """(n, …), a row for each; `model` is what it shall start from or look at. A program that keeps
    memory may overwrite it."""
    common: Table = field(default_factory=dict)
    """The same for all; `models` (K, P) are those of the clusters."""

    def take(self, which: slice | Int) -> Sent:
        """What some of the clients are sent."""
        return Sent({name: rows[which] for name, rows in self.own.items()}, self.common)


class Site(Protocol):
    """n clients and their data, in one round of one run."""

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""

    @property
    def sizes(self) -> Int:
        """(n,), |D_i|."""

    @property
    def round(self) -> int:
        """t, how many rounds were done before."""

    def train(
        self,
        rows: F32,
        plan: LocalPlan,
        *,
        correction: Correction = ...,
        velocity: F32 | None = None,
        free: Bool | None = None,
        part: slice = ...,
        out: F32 | None = None,
    ) -> tuple[F32, F32 | None]:
        """(n, P) and (n, trainable), rows and momentum after a `part` of the round's steps.

        Equal parts see equal batches. Only columns that are `free` (P,) move, also of BatchNorm's
        running statistics; the others keep their momentum as well. Momentum starts from `velocity`,
        or from zero; it is None where the plan has none. The rows are written to `out`, which may
        be `rows`, or to a new matrix.
        """

    def losses(self, models: F32, batches: int | None = None) -> F64:
        """(n, K), the mean training loss of each of K models on each client.

        `batches` limits the estimate to that many mini-batches drawn for the round.
        """

    def risk(self, rows: F32, split: Split = "train") -> F64:
        """(n,), the mean loss L(ω_i, D_i) of each client's own row."""

    def gradients(self, rows: F32, batches: int | None = None) -> F32:
        """(n, trainable), ∇L(ω_i, D_i), the gradient of what `risk` gives; BatchNorm as there."""

    def tally(self, rows: F32, split: Split) -> F64:
        """(n, …), what the task counts; of (n, J, P) the mean outputs of J models decide."""


class Program(Protocol):
    """What a client is asked to do: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]
    version: ClassVar[int]

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """What it keeps at the client until it is asked again, by name."""

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Refuse what can't be with this plan and this model, before anything is asked."""

    @property
    def replies(self) -> Mapping[str, Field]:
        """What it sends back, by name."""

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The reply (n, …), and the memory (n, …) from now on, of all fields declared."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is asked for in one exchange, the same for all clients."""

    program: Program
    plan: LocalPlan = field(default_factory=LocalPlan)
    """η and the number of steps may have one entry for each client that is asked."""
    seed: int = 0
    round: int = 0
    tick: int = 0
    """The version of the memory that the program starts from."""
    shared: str = "all"
    """The columns that travel; the others are the client's own."""
    keep: bool = False
    """Whether the memory is kept: a look at it never changes it."""
    met: Bool | None = None
    """(n,), who should have kept something; None: nobody."""

    def keeps(self, layout: Layout) -> dict[str, Field]:
        """What stays at a client: of the program, and the columns that don't travel."""
        kept = dict(self.program.keeps(self.plan))
        if (private := private_columns(layout, self.shared)) is not None:
            kept["private"] = Field((len(private),), start="received")
        return kept


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What came back from the n clients that were asked."""

    rows: dict[str, NDArray[Any]]
    """(n, …), by the names the program declares; of who did not answer, anything."""
    outcome: Int8
    """(n,), a `Reply` for each."""
    memory: Table = field(default_factory=dict)
    """(m, …), of all clients, where the server simulates them; else empty."""


def private_columns(layout: Layout, shared: str) -> Int | None:
    """The columns that don't travel; None: all do.

    >>> private_columns(Layout.of([("a", (2,), []), ("b", (1,), [])]), "a")
    array([2])
    """
    if shared == "all":
        return None
    mask = np.ones(layout.width, dtype=np.bool_)
    mask[layout.columns(shared)] = False
    return np.flatnonzero(mask) if mask.any() else None


def perform(job: Job, site: Site, sent: Sent, memory: Table) -> ReplyAndMemory:
    """Run a program at its clients: replies and memory (n, …).

    A model that comes is completed by the columns kept here. What starts from the model received
    does so at the first contact (`begun` says who had one), and again after a result that is not
    finite; its reply goes out as it is, and is refused by the server.
    """
    layout, n = site.layout, len(site.sizes)
    private, fields = private_columns(layout, job.shared), job.keeps(layout)
    own = dict(sent.own)
    model = own.get("model")
    sizes = {"P": layout.width, "trainable": layout.trainable}
    # Kept apart, since a program may overwrite what it received.
    received = {
        name: np.array(model[:, private] if name == "private" else model)
        for name, field in fields.items()
        if field.start == "received" and model is not None
    }

    def start(name: str) -> NDArray[Any]:
        zeros = (n, *fields[name].sized(sizes)), fields[name].dtype
        return received[name] if name in received else np.zeros(*zeros)

    begun = np.asarray(memory.get("begun", np.ones(n, np.bool_)), np.bool_)
    if model is not None and private is not None:  # a copy: what is private must not get out
        own["model"] = model.copy()
        if "private" in memory:
            own["model"][np.ix_(begun, private)] = memory["private"][begun]
    kept = {name: memory[name] if name in memory else start(name) for name in fields}
    if not begun.all():
        kept |= {
            name: np.where(_along(begun, rows), kept[name], rows) for name, rows in received.items()
        }
    reply, after = job.program(site, Sent(own, sent.common), kept, job.plan)
    if missing := {*job.program.replies} ^ {*reply}:
        raise ConfigError(f"{job.program.name} must reply what it declares: {sorted(missing)}")
    if not job.keep:
        return reply, {}
    if private is not None and "model" in reply:
        after = {**after, "private": reply["model"][:, private]}
    results = [reply[name] for name, field in job.program.replies.items() if field.update]
    bad = ~_finite(n, results + [after[name] for name in received if name in after])
    if bad.any():
        after = {
            name: np.where(_along(bad, rows), start(name), rows) for name, rows in after.items()
        }
    if received:
        after["begun"] = np.ones(n, np.bool_)
    return reply, after


def _finite(n: int, tables: Sequence[NDArray[Any]]) -> Bool:
    """(n,), whose rows are: float32 numbers can't overflow a float64 sum."""
    finite = np.ones(n, np.bool_)
    with np.errstate(invalid="ignore"):
        for rows in tables:
            finite &= np.isfinite(rows.reshape(n, -1).sum(axis=1, dtype=np.float64))
    return finite


def _along(who: Bool, rows: NDArray[Any]) -> Bool:
    """(n, 1, …), so that it chooses rows."""
    return who.reshape(-1, *[1] * (rows.ndim - 1))
