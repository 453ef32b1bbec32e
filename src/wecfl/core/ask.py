"""The step of a round that reaches clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wecfl.core.plan import LocalPlan
from wecfl.core.program import Program
from wecfl.core.state import State
from wecfl.core.types import Table
from wecfl.layout import Layout

if TYPE_CHECKING:
    from wecfl.core.setting import Setting

__all__ = ["Ask", "Learn", "Send", "Steps"]

Send = Callable[[State, "Setting"], Table]
"""Makes what clients are sent in addition to their model: named arrays, from state and setting.

Arrays with a row for each client are (m, …)."""

Learn = Callable[[State, State, Table, "Setting"], State]
"""Makes the next state from the replies. Its arguments are the state before the exchange, the state
with the replies, what clients were sent in addition to their model, and the setting. Its plan has
each client's η and number of steps."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A step of a round in which clients are asked to run a program and reply.

    The local update is `Ask()`, which is written "L" in `Method.steps`.
    """

    program: Program | None = None
    """None: the method's local update, which raises the number of the round."""
    send: Send | None = None
    """What clients are sent in addition to their model; None: nothing."""
    common: Send | None = None
    """What is the same for all clients, such as all centers as `models`; None: nothing."""
    learn: Learn | None = None
    """What the server does with the replies; None: they are put into the state."""
    check: Callable[[LocalPlan, Layout], None] | None = None
    """Raises an error for a plan or a model with which this step is impossible."""
    who: str = "participation"
    """The purpose of the random draw of participants: steps with different words draw different
    clients."""

    @property
    def letter(self) -> str:
        """The name of the step in records and for observers."""
        return self.program.name if self.program else "L"

    def __str__(self) -> str:
        """The name, with the functions that are special to this step."""
        parts = (self.send, self.common, self.learn)
        special = [getattr(part, "__name__", repr(part)) for part in parts if part]
        return f"{self.letter}({', '.join(special)})" if special else self.letter


Steps = tuple["str | Ask", ...]
"""The steps E, M, D and L by letter, and other steps that ask clients."""
