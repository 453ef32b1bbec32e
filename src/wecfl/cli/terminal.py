"""What every command shares: printing lines and tables, progress bars, and stopping on signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)
from rich.segment import Segment
from rich.table import Table

from wecfl.printing import printable, printable_lines

if TYPE_CHECKING:
    from wecfl.config import Config
    from wecfl.core.clients import Clients
    from wecfl.core.state import State
    from wecfl.data.downloads import DownloadProgress
    from wecfl.data.federation import Federation
    from wecfl.data.fleet import AnyFleet
    from wecfl.data.source import Dataset
    from wecfl.report.figures.files import AnyChart
    from wecfl.runs.record import Record
    from wecfl.runs.result import Result

__all__ = [
    "RunBars",
    "SafeConsole",
    "Stopped",
    "Stopping",
    "clients",
    "console",
    "downloads",
    "draw",
    "fail",
    "federation",
    "load",
    "say",
    "scores",
    "show",
    "show_json",
    "table",
    "track_rounds",
    "wide",
]


MAX_TABLE_WIDTH = 10_000
"""The most places that a table is measured with."""


class SafeConsole(Console):
    """A console that shows the control characters of a text, so that the terminal obeys none."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments to print. Control segments, which move the cursor, come from rich itself."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


console = SafeConsole()
"""Standard output."""


def say(text: str) -> None:
    """Print one line on standard error; line breaks in the text become spaces."""
    print(f"wecfl: {printable(text.strip())}", file=sys.stderr)


def fail(text: str) -> NoReturn:
    """Print why, and exit with 2, the code of bad input."""
    say(text)
    sys.exit(2)


def show(text: str) -> None:
    """Print a line as it is: a path may hold brackets, which rich would take for markup."""
    console.print(printable(text), soft_wrap=True, highlight=False, markup=False)


def table(rows: Table) -> None:
    """Print a table with all its columns: a narrow terminal breaks lines, and nothing is left out.

    It is at least as wide as its longest words need.
    """
    options = console.options.update(width=MAX_TABLE_WIDTH)
    # rich forgets the padding of columns that have a minimum width of their own.
    padded = sum(column.min_width is not None for column in rows.columns)
    needed = Measurement.get(console, options, rows).minimum + padded
    SafeConsole(width=max(console.width, needed), file=console.file).print(rows)


def wide(rows: RenderableType) -> None:
    """Print a table of long texts, wide enough for all columns if the output is not a terminal."""
    width = None if console.is_terminal else max(console.width, 160)
    SafeConsole(width=width, file=console.file).print(rows)


def show_json(document: str) -> None:
    """Print JSON. It may hold control characters, which a terminal would obey: they are escaped."""
    print("".join(c if c.isprintable() or c == "\n" else dumps(c)[1:-1] for c in document))


def scores(record: Mapping[str, Any], headline: str = "") -> str:
    """The headline and the ARI of a record, in words; for a stored result, name the headline.

    >>> scores({"accuracy": 0.9, "ari": 1.0, "clients": {"accuracy": [0.9]}})
    'accuracy 90.0 %  ARI 1.00'
    """
    from wecfl.report.sentences import score_words
    from wecfl.runs.scores import scores_of

    ari = "" if record["ari"] is None else f"  ARI {record['ari']:.2f}"
    headline = headline or scores_of(record)[0]
    return score_words(headline, record[headline]) + ari


def draw(chart: AnyChart, path: Path) -> None:
    """Write a chart and print its path."""
    from wecfl.report.figures.files import save

    show(f"figure: {save(chart, path)}")


def load(config: Config) -> Dataset:
    """The data set of a configuration, with a progress bar while it is downloaded."""
    from wecfl.from_config import load_pool

    with downloads() as progress:
        return load_pool(config, progress)


def federation(config: Config) -> Federation:
    """The clients of a configuration, with a progress bar while their data are downloaded."""
    from wecfl.from_config import federation_of, holds_clients

    return federation_of(config, None if holds_clients(config) else load(config))


def clients(config: Config) -> Federation | AnyFleet:
    """The clients of a configuration, or the fleet that the code of the data set makes."""
    from wecfl.config.keys import is_own
    from wecfl.experiment.fleet import clients_of

    return clients_of(config) if is_own(config.dataset) else federation(config)


class RunBars:
    """A progress bar for each run: its rounds, headline and agreement with the hidden groups.

    It is a context manager, and a `Watcher` of one run after the other.
    """

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:<8}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[scores]}"), TimeElapsedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[work]}"),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Add a bar for this run."""
        if config.get("engine") == "ray":
            nodes = f"{env['nodes']} node{'s' * (env['nodes'] > 1)}"
            show(f"ray: {len(clients)} clients in {env['workers']} actors on {nodes}")
        self._task = self._progress.add_task(
            config["method"], total=config["rounds"], scores="", work=""
        )

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Move the bar one round further."""
        if self._task is not None:
            self._progress.update(self._task, completed=record["round"], scores=scores(record))

    def work(self, name: str, done: int, total: int) -> None:
        """Show how many clients are done with a step; before the first round there is no bar."""
        if self._task is not None:
            progress = f"{name} {done}/{total}" if done < total else ""
            self._progress.update(self._task, work=progress)

    def end(self, result: Result) -> None:
        """Leave the bar as it is."""
        self._task = None


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop: the first one after the round, the second one at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


class Stopping:
    """Makes SIGINT and SIGTERM wait for the end of the round; a second signal stops at once.

    It is a context manager and a `Watcher`. It must be the last watcher of a run, so that the
    others have seen the round before the run stops.
    """

    def __init__(self) -> None:
        self._asked: int | None = None

    def __enter__(self) -> Self:
        signals = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._ask) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Remember which round is the last one: after it there is nothing to stop."""
        self._rounds = config["rounds"]

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Stop after this round if a signal asked for it."""
        if self._asked and record["round"] < self._rounds:
            raise Stopped(self._asked)

    def end(self, result: Result) -> None:
        """Nothing to do."""

    def _ask(self, number: int, frame: object) -> None:
        if self._asked:
            raise Stopped(number)
        self._asked = number
        say("stopping after this round; interrupt once more to stop at once")


@contextmanager
def downloads() -> Iterator[DownloadProgress]:
    """Show a progress bar for each file that is downloaded; nothing if none is."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    )  # fmt: skip
    screen = SafeConsole(stderr=True)
    progress = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        progress.start()
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total)
        progress.update(tasks[name], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            progress.stop()


def track_rounds(rounds: Sequence[int], title: str) -> Iterable[int]:
    """The rounds, with a progress bar while t-SNE places the clients of each of them."""
    show = SafeConsole(stderr=True)
    hidden = not show.is_terminal  # it would leave an empty line
    return track(rounds, f"{escape(title)}: t-SNE", console=show, transient=True, disable=hidden)
