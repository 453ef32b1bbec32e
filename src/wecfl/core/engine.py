"""What runs the clients: the only object that may touch their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, F64, Int, Int8, Split, State
from wecfl.layout import Layout

__all__ = ["Engine", "Update"]

Update = tuple[F32, dict[str, F32]] | tuple[F32, dict[str, F32], Int8]
"""What a local update comes to: models (m, P), memory, and what came of each reply, if not all."""


class Engine(Protocol):
    """The only object that may touch client data D_i. m clients, models as rows."""

    @property
    def name(self) -> str:
        """Part of the reproducibility key: engines agree to float tolerance, each to the bit."""

    @property
    def workers(self) -> int:
        """How many clients are at work at once."""

    @property
    def nodes(self) -> int:
        """On how many machines."""

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    def train(
        self,
        state: State,
        plan: Plan,
        correction: Correction,
        seed: int,
        active: Sequence[int] | None = None,
    ) -> Update:
        """Q local steps of each client from its row of `state.models`: new models and memory.

        Only the clients in `active` train, if it is given; the rows of the others stay. Where a
        client may not answer, also what came of each (`Reply`); its row stays then, too.
        """

    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        """(m, K), the mean training loss L(Ω_k, D_i) of each of the K models on each client.

        Only the clients in `active` are asked, if it is given: a row for each, by rising number;
        NaN where there is no answer.
        `batches` limits the estimate to that many mini-batches drawn for (seed, round, client).
        """

    def risk(self, models: F32, split: Split = "train") -> F64:
        """(m,), the mean loss L(ω_i, D_i) of each client's own row, on its own data."""

    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        """(m, trainable), ∇L(ω_i, D_i) of each client's own row: the gradient of what `risk` gives.

        BatchNorm uses what it uses in evaluation; `batches` as for `losses`.
        """

    def confusion(self, models: F32, split: Split) -> Int:
        """(m, C, C), truth by prediction of each client's own row on its own data.

        All scores derive from it. `models` may be a stack (n, m, P): then the logits of the n
        models of a client are averaged (soft vote). Zeros of a client that does not answer.
        """

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), initial models by number: 0 is the model as given, others are drawn anew."""

    def notes(self) -> dict[str, Any]:
        """What else is worth writing down about the round that ends; nothing of most engines."""
