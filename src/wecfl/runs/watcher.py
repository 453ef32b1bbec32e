"""Watchers of a run: the run folder, the progress bar and the trackers all have this form."""

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

OnRound = Callable[[Record, Sequence[State]], str | None]
"""Called after each round with its record and the states (one for each run of a soft vote). If it
returns a text, the run ends for this reason, after this round or the next one in which clients are
tested. If the clients' memory is larger than 256 MB, the next round overwrites it in these states.
"""


@runtime_checkable
class Watcher(Protocol):
    """An object that is called when a run begins, after each round, and when the run ends.

    It is also called at the end after an error. Watchers are called in their order, after the run
    folder.
    """

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Called before the first round with `config.toml`, `env.json` and the clients.

        `config` always holds `method` and `rounds`.
        """

    def round(self, record: Record, states: Sequence[State]) -> str | None:
        """Called after a round with its line of `metrics.jsonl`, and the states (one for each run).

        It may return a text, the reason to end the run here (`OnRound`).
        """

    def end(self, result: Result) -> None:
        """Called after the last complete round; `result.status` says how the run ended."""


@dataclass(frozen=True, slots=True)
class AfterRound:
    """Makes a `Watcher` of a function that is called after each round.

    >>> AfterRound(lambda record, states: print(record["round"])).round({"round": 3}, [])
    3
    """

    function: OnRound

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Nothing to do."""

    def round(self, record: Record, states: Sequence[State]) -> str | None:
        """Call the function."""
        return self.function(record, states)

    def end(self, result: Result) -> None:
        """Nothing to do."""
