"""A step of a round that asks clients for something."""

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
"""(m, …), what clients are sent beside their model, by name; from the state and the setting."""

Learn = Callable[[State, State, Table, LocalPlan], State]
"""What the server makes of the replies at once: from the state before the exchange, the state with
the replies, what clients were sent beside their model, and the plan with η and steps of each."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A step of a round: clients are asked to run a program, and the server takes their replies.

    The local update is `Ask()`, written "L" in `Method.steps`.
    """

    program: Program | None = None
    """None: what the method calls its local update, after which a round is counted."""
    send: Send | None = None
    learn: Learn | None = None
    check: Callable[[LocalPlan, Layout], None] | None = None
    """Refuses plans and models that it can't be done with."""
    who: str = "participation"
    """What the draw of the participants is for: asks with other words draw other clients."""

    @property
    def letter(self) -> str:
        """What observers and records call it."""
        return self.program.name if self.program else "L"

    def __str__(self) -> str:
        """With what is special about it, in words."""
        parts = (self.send, self.learn)
        special = [getattr(part, "__name__", repr(part)) for part in parts if part]
        return f"{self.letter}({', '.join(special)})" if special else self.letter


Steps = tuple["str | Ask", ...]
"""E, M, D and L by letter, and what else is asked."""
