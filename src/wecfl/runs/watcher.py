"""Who watches a run: the run folder, the progress bar and the trackers are all the same thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.runs.record import Record

if TYPE_CHECKING:
    from wecfl.runs.result import Result

__all__ = ["AfterRound", "OnRound", "Watcher"]

OnRound = Callable[[Record, Sequence[State]], None]
"""Called after each round with its record and the states (one, or one per soft-voted member)."""


@runtime_checkable
class Watcher(Protocol):
    """Told when a run begins, after each round, and when it ends – whatever ended it.

    `wecfl.run` tells its watchers in their order, the run folder first.
    """

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Before the first round: what goes into `config.toml` and `env.json`, and the clients.

        `config` always holds `method` and `rounds`.
        """

    def round(self, record: Record, states: Sequence[State]) -> None:
        """After a round: its line of `metrics.jsonl` and the state (one per soft-voted member)."""

    def end(self, result: Result) -> None:
        """After the last complete round; `result.status` says whether it was the last planned."""


@dataclass(frozen=True, slots=True)
class AfterRound:
    """A function that only wants to see the rounds, as a `Watcher`.

    >>> AfterRound(lambda record, states: print(record["round"])).round({"round": 3}, [])
    3
    """

    function: OnRound

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Nothing to do."""

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Call the function."""
        self.function(record, states)

    def end(self, result: Result) -> None:
        """Nothing to do."""
