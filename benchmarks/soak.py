"""Load and faults, for longer than a test may take: the promises of docs/reliability.md.

kills    every method on both engines, several methods in one run, clients with a ledger, and
         Ray, killed at random moments and resumed (tests/kills.py)
clients  10,000 clients with a CNN, 20 rounds, with a run folder
rounds   1,000 rounds of 200 clients on digits
model    a model of 100 MB, stopped and resumed to the same bits
federations  nodes over a network of which many say anything (tests/hostile.py)

All parts run unless some are named. Needs Linux (/proc), and 4 GB of disk for `clients`. Ctrl-C
stops the part that runs, and the figures of the parts before it are shown.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from torch import nn

from common import (
    Line,
    clients_of_a_pool,
    in_a_fresh_process,
    peak_memory,
    resident_memory,
    show,
)
from wecfl import Config, Federation, Folder, Measure, Plan, methods, run, run_config
from wecfl.folder.writer import environment
from wecfl.methods import METHODS

MAX_MEMORY_GROWTH = 1.05
"""The largest memory after the last round, as a multiple of that after a quarter of the rounds."""
ENGINES = ("native", "torch")
TESTS = Path(__file__).parents[1] / "tests"
KILLS_SCRIPT, HOSTILE_SCRIPT = TESTS / "kills.py", TESTS / "hostile.py"
KILLED_METHODS = (*METHODS, "wecfl-adam", "cfl-adam")
"""All methods, and two of tests/kills.py with an optimizer in clusters that are found or split.
Together they keep something of every kind: with each cluster (fedavgm, fedadam, …), about each
client (scaffold), as a whole (cfl, K = auto), and at the clients (momentum, ditto, local, fedper,
lg-fedavg, fedrep)."""
KILLED_CASES = {"several": 30, "ledger": 30, "ray": 6}
"""The other cases of tests/kills.py, and how often each is killed. Ray takes seconds to start."""


@dataclass(frozen=True, slots=True)
class ResourceTrail:
    """The resources that a process holds after each round."""

    resident: list[float] = field(default_factory=list)
    """GB."""
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def note(self, *_: object) -> None:
        """Note them after a round; a watcher of a run."""
        self.resident.append(resident_memory())
        self.files.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 (iterdir is slower)
        self.threads.append(len(os.listdir("/proc/self/task")))  # noqa: PTH208

    @property
    def memory_growth(self) -> tuple[float, str]:
        """Memory after the last round ÷ after a quarter of the rounds, and both in words."""
        count = len(self.resident)
        early, last = self.resident[max(count // 4, 1) - 1], self.resident[-1]
        words = f"{early:.3f} GB after round {max(count // 4, 1)}, {last:.3f} GB after {count}"
        return last / early, words


def kills(
    times: int,
    names: Sequence[str] = KILLED_METHODS,
    cases: Mapping[str, int] = KILLED_CASES,
    goal: int | None = None,
    script: Path = KILLS_SCRIPT,
) -> list[Line]:
    """Kill each method on each engine `times` times, and the other cases as often as they say.

    Each run must come to the same bits; of clients with a ledger, no more may leave than it says.
    """
    words = ["--times", str(times), "--method", *names, "--engine", *ENGINES]
    if cases:
        words += ["--case", *(f"{name}={count}" for name, count in cases.items())]
    pairs = len(names) * len(ENGINES) + len(cases)
    results, code = _told(script, words, "kills", pairs)
    total = {
        key: sum(result[key] for result in results) for key in ("kills", "while writing", "runs")
    }
    detail = f"{total['runs']} runs, {total['while writing']} kills in the middle of writing"
    if code:
        detail = f"failed in configuration {len(results) + 1} of {pairs}; {detail}"
    return [
        Line("configurations that stood all kills", "logistic, mlp", [len(results)], least=pairs),
        Line(
            "kills, none of which changed a bit", "logistic, mlp", [total["kills"]], least=goal,
            detail=detail,
        ),
    ]  # fmt: skip


def federations(count: int, nodes: int, script: Path = HOSTILE_SCRIPT) -> list[Line]:
    """Run federations over a network in memory, in each of which some nodes say anything."""
    words = ["--count", str(count), "--nodes", str(nodes)]
    results, code = _told(script, words, "federations", count)
    liars, refused = (sum(result[key] for result in results) for key in ("liars", "refused"))
    detail = f"{liars} nodes lied, {refused} replies were refused"
    if code:
        detail = f"failed in federation {len(results)}; {detail}"
    title = f"federations of {nodes} nodes that finished, resumed and reported"
    return [Line(title, "MLP, 39 parameters", [len(results)], least=count, detail=detail)]


def _told(
    script: Path, words: Sequence[str], title: str, total: int
) -> tuple[list[dict[str, Any]], int]:
    """What a script prints, a dictionary in each line, and its exit code."""
    results: list[dict[str, Any]] = []
    with (
        _bar(title, total) as advance,
        subprocess.Popen(
            [sys.executable, str(script), *words], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                results.append(ast.literal_eval(line))
                advance()
        except BaseException:
            process.terminate()
            raise
    return results, process.returncode


def clients(m: int, rounds: int) -> list[Line]:
    """Measure the memory of many clients."""
    title = "CNN, 29,830 parameters"
    trail, peak, folder = _alone(_clients, m, rounds)
    ratio, words = trail.memory_growth
    work = f"{m:,} clients × {rounds} rounds"
    return [
        Line(f"{work}: peak memory", title, [peak], most=8, unit="GB"),
        Line(f"{work}: last ÷ early", title, [ratio], most=MAX_MEMORY_GROWTH, detail=words),
        Line(f"{work}: run folder", title, [folder], unit="GB"),
    ]


def _clients(place: Path, m: int, rounds: int) -> tuple[ResourceTrail, float, float]:
    fed = clients_of_a_pool((1, 8, 8), m, train=8, test=2, apart=True)
    with _bar("clients", rounds) as advance:
        trail = ResourceTrail()
        run(
            fed, methods.wecfl(k=10), model=_cnn, rounds=rounds, plan=Plan(steps=1, batch=8),
            measure=Measure(objectives=False), folder=place / "run", watch=[trail.note, advance],
        )  # fmt: skip
    return trail, peak_memory(), _size(place) / 1e9


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 180), nn.ReLU(), nn.Linear(180, 10),
    )  # fmt: skip


def rounds(count: int, m: int) -> list[Line]:
    """Measure what grows over many rounds."""
    trail, peak, folder, kept = _alone(_rounds, count, m)
    ratio, words = trail.memory_growth
    work = f"{count:,} rounds × {m} clients"
    return [
        Line(f"{work}: last ÷ early", "mlp, digits", [ratio], most=MAX_MEMORY_GROWTH, detail=words),
        *(
            Line(f"{work}: more {name}", "mlp, digits", [growth(counts)], most=0,
                 detail=f"{min(counts)} to {max(counts)} at any time")
            for name, counts in (("open files", trail.files), ("threads", trail.threads))
        ),
        Line(f"{work}: peak memory", "mlp, digits", [peak], unit="GB"),
        Line(f"{work}: run folder", "mlp, digits", [folder / count / 1e3], unit="KB per round",
             detail=f"{folder / 1e6:.1f} MB, and {kept / 1e6:.1f} MB of checkpoints"),
    ]  # fmt: skip


def _rounds(place: Path, count: int, m: int) -> tuple[ResourceTrail, float, float, float]:
    with _bar("rounds", count) as advance:
        trail = ResourceTrail()
        config = Config(
            partition="clusterwise-nclass", clients=m, rounds=count, steps=1, objectives=False
        )
        run_config(config, out=place / "run", watch=[trail.note, advance])
    kept = _size(place / "run" / "checkpoints")
    return trail, peak_memory(), _size(place) - kept, kept


def growth(counts: Sequence[int]) -> int:
    """From the first quarter of the rounds to the last; what is open for a while does not count."""
    quarter = max(len(counts) // 4, 1)
    return min(counts[-quarter:]) - min(counts[:quarter])


def model(hidden: int, m: int, rounds: int) -> list[Line]:
    """Measure the memory of a run of a large model and of a resumed one, and compare their bits."""
    half, size = rounds // 2, _width(hidden) * 4 / 1e9
    title = f"MLP, {size * 1e3:.3g} MB"
    with TemporaryDirectory() as place, _bar("model", 3) as advance:
        whole, stopped = Path(place) / "whole", Path(place) / "stopped"
        peaks = {}
        for work, folder, count in (("run", whole, rounds), ("", stopped, half),
                                    ("resume", stopped, rounds)):  # fmt: skip
            peaks[work] = in_a_fresh_process(_model, folder, hidden, m, count, work == "resume")
            advance()
        same = _digests(whole) == _digests(stopped)
        checkpoint = _size(whole / "checkpoints") / 2 / 1e9
    multiple = f"{checkpoint / size:.1f} × the model in a checkpoint"
    return [
        Line(f"{m} clients, 2 clusters: same checkpoints after a stop", title, [same], least=1,
             detail=f"stopped after round {half} of {rounds}, resumed in another process"),
        *(
            Line(f"{m} clients, 2 clusters: peak of a {work}", title, [peaks[work] / size],
                 unit="× the model", detail=f"{peaks[work]:.2f} GB; {multiple}")
            for work in ("run", "resume")
        ),
    ]  # fmt: skip


FEATURES, CLASSES = 1024, 10


def _width(hidden: int) -> int:
    return (FEATURES + 1) * hidden + (hidden + 1) * CLASSES


def _model(out: Path, hidden: int, m: int, rounds: int, resume: bool) -> float:
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays(
        [rng.standard_normal((40, FEATURES), np.float32) for _ in range(m)],
        [rng.integers(0, CLASSES, 40) for _ in range(m)],
        classes=CLASSES,
    )
    run(
        fed, methods.wecfl(k=2), rounds=rounds, plan=Plan(steps=2),
        folder=Folder(out, resume=resume),
        model=lambda: nn.Sequential(
            nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        ),
    )  # fmt: skip
    return peak_memory()


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of the state in each checkpoint of a run folder."""
    files = sorted((folder / "checkpoints").glob("*.json"))
    return {file.stem: json.loads(file.read_bytes())["manifest"]["sha256"] for file in files}


def _alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do the work in a process and a folder of its own."""
    with TemporaryDirectory() as place:
        return in_a_fresh_process(work, Path(place), *arguments)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar; the function that advances it may be a watcher of a run."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda *_: progress.advance(task)


PARTS: dict[str, tuple[Callable[..., list[Line]], dict[str, Any], dict[str, Any]]] = {
    "kills": (kills, {"times": 10, "goal": 500}, {"times": 1, "names": ["wecfl"], "cases": {}}),
    "clients": (clients, {"m": 10_000, "rounds": 20}, {"m": 300, "rounds": 12}),
    "rounds": (rounds, {"count": 1000, "m": 200}, {"count": 20, "m": 20}),
    "model": (model, {"hidden": 24_150, "m": 4, "rounds": 4}, {"hidden": 500, "m": 4, "rounds": 4}),
    "federations": (federations, {"count": 24, "nodes": 20}, {"count": 2, "nodes": 5}),
}
"""The function of each part, its size, and its size with --quick."""


def main() -> None:
    """Measure the parts, print the figures, and write them to a file."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    flags.add_argument(
        "--quick", action="store_true", help="small sizes, a minute in all; the figures say little"
    )
    flags.add_argument("--times", type=int, help="how often each method is killed on each engine")
    flags.add_argument("--json", type=Path, help="the file for the figures")
    chosen = flags.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        flags.error(f"unknown part {min(unknown)}: choose from {', '.join(PARTS)}")
    lines: list[Line] = []
    interrupted = False
    try:
        for name in chosen.parts or PARTS:
            work, *sizes = PARTS[name]
            size = sizes[chosen.quick]
            if name == "kills" and chosen.times:
                size = size | {"times": chosen.times}
            lines += work(**size)
    except KeyboardInterrupt:
        interrupted = True
        print(f"interrupted in {name}", file=sys.stderr)
    show(lines)
    if chosen.json:
        figures = [asdict(line) | {"goal": line.goal, "verdict": line.verdict} for line in lines]
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({**environment(), "lines": figures}, indent=2) + "\n")
    sys.exit(130 if interrupted else any(line.verdict == "missed" for line in lines))


if __name__ == "__main__":
    main()
