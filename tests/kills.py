"""Kills runs at random moments and resumes them: `python tests/kills.py --times 100`.

It does so for every named method on every named engine, and for other cases: `several` methods in
one run of the command line, the `ledger` of clients over a network, and a run on `ray`. It prints a
line for each. The line of a method also has what the run kept, by owner
(`wecfl.core.state.State`), and its clusters by round.

A run begins in a child process. This is killed (SIGKILL) after a random time, or kills itself in
the middle of writing a file. Another child resumes the run, and so on until it is finished. It must
then be the same, to the bit, as a run that was left alone. Of clients with a ledger, whose noise is
never the same, no more may have left than the ledger says, after each kill.
"""

import argparse
import logging
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from torch import nn

from helpers import same_folders
from wecfl import methods
from wecfl.bilevel.aggregation.optimizer import Adaptive, adam
from wecfl.cli import app, terminal
from wecfl.config import Config
from wecfl.core.method import Method
from wecfl.engine import make_engine
from wecfl.experiment import run_config
from wecfl.folder.readers import config_of, read_metrics, read_states
from wecfl.from_config import federation_of
from wecfl.method_from_config import method_of
from wecfl.methods import METHODS
from wecfl.models import build, make

OPERATIONS = {"fsync": os, "truncate": os, "replace": Path, "unlink": Path, "mkdir": Path}
"""The operations that write a run folder, except those that write the content of files."""

TWO_LAYERS = ("moon", "hermes", "ifca+")
"""Methods that look at more than the last layer, besides those that keep one from the server."""

OWNERS = ("memory", "cluster", "known", "whole")
"""Those who keep something between rounds."""


def wecfl_adam() -> Method:
    """FedAdam inside the clusters of WeCFL, which finds their number itself."""
    return methods.wecfl("auto").replace(name="wecfl-adam", aggregation=Adaptive(adam, 0.1))


def cfl_adam(eps1: float, eps2: float) -> Method:
    """FedAdam inside clusters that split later; both parts inherit the moments."""
    parted = methods.cfl(eps1, eps2)
    return parted.replace(name="cfl-adam", aggregation=Adaptive(adam, 0.1))


COMBINED: dict[str, Callable[..., Method]] = {"wecfl-adam": wecfl_adam, "cfl-adam": cfl_adam}
"""Methods that only this script knows."""

PARTING: dict[str, Any] = {"eps1": 0.4, "eps2": 0.2, "lr": 0.01}
"""With these CFL splits clusters in rounds 2, 3 and 4; by default it never would on so few data."""
CHOICES: dict[str, dict[str, Any]] = {
    "cfl": PARTING, "cfl-adam": PARTING, "flhc": {"cluster_round": 2}
}  # fmt: skip
"""The choices of some methods that differ from those of the others."""

torch.set_num_threads(1)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment: int, after: bool) -> None:
    """Kill this process before (or after) its operation number `moment` on files.

    Writing a piece of a file is an operation, too: of that one half is written.
    """
    left = [moment]
    open_file = Path.open

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 and not after:
                die()
            outcome = operation(*arguments, **options)
            if left[0] < 0:
                die()
            return outcome

        return call

    for name, owner in OPERATIONS.items():
        setattr(owner, name, counted(getattr(owner, name)))

    def open_torn(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opened = open_file(path, mode, *arguments, **options)
        return Torn(opened, left) if mode == "wb" else opened

    Path.open = open_torn  # type: ignore[assignment]


class Torn:
    """A file that is open for writing, in a process that dies while it writes a piece of it."""

    def __init__(self, file: Any, left: list[int]) -> None:
        self._file, self._left = file, left

    def __enter__(self) -> "Torn":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, piece: bytes | memoryview) -> int:
        self._left[0] -= 1
        if self._left[0] < 0:
            self._file.write(piece[: len(piece) // 2])
            self._file.flush()
            die()
        return int(self._file.write(piece))


@dataclass(frozen=True)
class Case:
    """Something to kill."""

    name: str
    work: Callable[[Path], object]
    """Begin it in this folder, or go on there."""
    ended: Callable[[Path], bool]
    """Whether nothing is left to do there."""
    compare: Callable[[Path, Path], dict[str, Any]]
    """Raise if a folder is not as one that was left alone; what else to tell."""
    after_kill: Callable[[Path], object] = lambda folder: None
    """Look at the folder, and clean up, after each kill."""


def child(case: Case, folder: Path, inject: tuple[int, bool] | None) -> int:
    """Begin or resume in a process of its own; return the number of the process."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ[MARK] = str(folder)
        if inject:
            die_at(*inject)
        case.work(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def kill_and_resume(case: Case, times: int, seed: int, place: Path) -> dict[str, Any]:
    """Kill runs `times` times in all, and let the last one end.

    Return the number of runs and kills, and what was kept.
    """
    draw = random.Random(f"{case.name} {seed}")
    began = time.perf_counter()
    _, status = os.waitpid(child(case, place / "whole", None), 0)
    if status:
        raise AssertionError(f"{case.name}: a run that was left alone ended with {status}")
    lasted = time.perf_counter() - began
    counts = {"kills": 0, "while writing": 0, "runs": 0}
    told: dict[str, Any] = {}
    first = draw.randrange(2)
    while counts["kills"] < times:
        folder = place / f"run {counts['runs']}"
        finished = False
        while not finished:
            spared = counts["kills"] >= times  # enough: what is begun goes on to its end
            writing = not spared and (first + counts["kills"]) % 2  # in turns with any moment
            inject = (draw.randrange(40), draw.random() < 0.5) if writing else None
            pid = child(case, folder, inject)
            if not inject and not spared:
                time.sleep(draw.uniform(0, lasted))
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            finished = status == 0
            if not finished:
                if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
                    raise AssertionError(f"{folder} ended with status {status}")
                counts["kills"] += 1
                counts["while writing"] += bool(inject)
                case.after_kill(folder)
                finished = case.ended(folder)
        told = case.compare(place / "whole", folder)
        counts["runs"] += 1
    return counts | told


# A method on an engine


def configured(method: str, engine: str, rounds: int) -> Config:
    """A small run, with a linear model where the method can do with one layer.

    The engine is `auto` in place of native, which can't carry every method.
    """
    config = Config(
        method=method, engine="torch" if engine == "torch" else "auto", clusters=2, clients=6,
        groups=2, rounds=rounds, steps=3, workers=1, **CHOICES.get(method, {}),
    )  # fmt: skip
    linear = method not in TWO_LAYERS and method_of(config).shared == "all"
    return config.model_copy(update={"model": "logistic" if linear else "mlp"})


def warm(config: Config) -> None:
    """Load here what each child would otherwise have to load."""
    federation = federation_of(config)
    model = make(config.model, shape=federation.shape, classes=federation.classes, seed=0)
    make_engine("native", federation, model, workers=1).close()


def method_case(config: Config) -> Case:
    """One method."""

    def work(folder: Path) -> None:
        begun = (folder / "config.toml").exists()
        run_config(config_of(folder) if begun else config, out=folder, resume=begun)

    warm(config)
    return Case(config.method, work, has_summary, same_run)


def has_summary(folder: Path) -> bool:
    """This is the last file of a run: after it there is nothing left to do."""
    return (folder / "summary.json").is_file()


def same_run(whole: Path, folder: Path) -> dict[str, Any]:
    if other := names(whole) ^ names(folder):
        raise AssertionError(f"{folder}: only one of two runs has {sorted(other)}")
    same_folders(whole, folder)
    return kept(whole)


# Several methods in one run


SEVERAL = ("fedavg", "scaffold", "ditto", "cfl")
"""One that keeps momentum alone, two that keep more, and one whose clusters grow in number."""


def several_case(rounds: int) -> Case:
    """`wecfl run --method a,b,c`, then `wecfl resume`."""
    flags = {"clients": 6, "groups": 2, "rounds": rounds, "steps": 3, "model": "logistic",
             "workers": 1}  # fmt: skip
    tokens = [f"--{name}={value}" for name, value in (flags | PARTING).items()]

    def work(folder: Path) -> None:
        command = ["run", "--method", ",".join(SEVERAL), *tokens, "--out", str(folder)]
        if (folder / "runs.toml").exists():
            command = ["resume", str(folder)]
        terminal.console.file = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
        app(command, exit_on_error=False, print_error=False, result_action="return_value")

    def ended(folder: Path) -> bool:
        return all(has_summary(folder / name) for name in SEVERAL)

    def compare(whole: Path, folder: Path) -> dict[str, Any]:
        found = {name: same_run(whole / name, folder / name) for name in SEVERAL}
        if (whole / "runs.toml").read_bytes() != (folder / "runs.toml").read_bytes():
            raise AssertionError(f"{folder}: its list of runs differs")
        return {"clusters": found["cfl"]["clusters"]}

    warm(configured("ditto", "native", rounds))
    return Case("several", work, ended, compare)


# The ledger of a client


def ledger_case(rounds: int) -> Case:
    """A private run over a network of clients in the same process, which are killed with it."""
    import fakegrid  # Flower takes seconds to load, and only this case needs it
    from wecfl.flower import client_app
    from wecfl.flower.ledger import LEDGER_FILE, Ledger
    from wecfl.flower.server import serve

    clients, fed = 3, fakegrid.digits_of(3)

    def make_model() -> nn.Module:
        return build("logistic", shape=(1, 8, 8), classes=10, seed=5)

    def load_data(config: Any) -> tuple[Any, ...]:
        train = fed.train[config["partition-id"]]
        return fed.x[train], fed.y[train]

    def leaving(place: Path) -> Callable[[Any], Any]:
        """Notes what has left a client; where the process dies before, it has not left."""
        place.mkdir(parents=True, exist_ok=True)
        sent = os.open(place / "sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def note(message: Any) -> Any:
            if message.metadata.message_type == "train" and message.has_content():
                records = message.content.array_records.values()
                arrays = [array.numpy() for record in records for array in record.values()]
                content = b"".join(array.tobytes() for array in arrays)
                os.write(sent, f"{sha256(content).hexdigest()}\n".encode())
            return message

        return note

    def work(folder: Path) -> None:
        logging.getLogger("wecfl").setLevel(logging.ERROR)
        grid = fakegrid.FakeGrid(
            {
                i: fakegrid.Node(
                    client_app(load_data, make_model, classes=10),
                    {"client-id": f"c{i}", "partition-id": i, "state-dir": str(folder / f"c{i}")},
                    tamper=leaving(folder / f"c{i}"),
                )
                for i in range(clients)
            }
        )
        said = {
            "clients": clients, "rounds": rounds, "steps": 3, "clusters": 2, "timeout": 30,
            "enrolment": 0.05, "min-clients": clients, "out": str(folder / "run"), "clip": 0.1,
            "noise": 10.0,
        }  # fmt: skip
        serve(grid, said, make_model, classes=10, **fakegrid.WAITS)

    def spent(folder: Path) -> dict[str, int]:
        """What left the clients, and what their ledgers say has left."""
        total = {"sent": 0, "in ledgers": 0}
        for place in folder.glob("c*"):
            sent = set((place / "sent").read_text().split())
            told = Ledger(place / LEDGER_FILE).read().replies
            if len(sent) > told:
                raise AssertionError(f"{len(sent)} replies have left {place}, its ledger: {told}")
            total = {"sent": total["sent"] + len(sent), "in ledgers": total["in ledgers"] + told}
        return total

    def compare(_: Path, folder: Path) -> dict[str, Any]:
        found = spent(folder)
        if len(read_metrics(folder / "run")) != rounds or found["sent"] < clients * rounds:
            raise AssertionError(f"{folder}: a round is missing ({found})")
        return found

    return Case("ledger", work, lambda folder: has_summary(folder / "run"), compare, spent)


# Ray


MARK = "WECFL_KILLS"
"""The variable by which the processes that a child has started are known."""


def ray_case(rounds: int) -> Case:
    """One method in the actors of a Ray of its own, whose driver is killed."""
    case = method_case(configured("scaffold", "ray", rounds))
    return replace(case, name="ray", after_kill=end_all)


def end_all(folder: Path) -> None:
    """End what a killed process has left running; it belongs to nobody else."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                process.kill()


CASES: dict[str, Callable[[int], Case]] = {
    "several": several_case, "ledger": ledger_case, "ray": ray_case
}  # fmt: skip
"""What is killed beside methods, by the number of rounds."""


def names(folder: Path) -> set[str]:
    """The names of the files of a run."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def kept(folder: Path) -> dict[str, Any]:
    """What a kill could lose: the names of the arrays by owner, and the clusters by round."""
    [state, *_] = read_states(folder)
    held = {owner: sorted(getattr(state, owner)) for owner in OWNERS}
    sizes = [len(record["sizes"]) for record in read_metrics(folder)]
    return {"kept": {owner: arrays for owner, arrays in held.items() if arrays}, "clusters": sizes}


def main() -> None:
    METHODS.update(COMBINED)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", nargs="*", choices=METHODS, default=["wecfl"], metavar="NAME")
    parser.add_argument("--engine", nargs="+", choices=["native", "torch"], default=["native"])
    parser.add_argument("--case", nargs="+", type=counted_case, default=[], metavar="NAME[=TIMES]")
    chosen = parser.parse_args()
    for method, engine in product(chosen.method, chosen.engine):
        case = method_case(configured(method, engine, chosen.rounds))
        told(case, chosen.times, chosen.seed, {"method": method, "engine": engine})
    for name, times in chosen.case:
        told(CASES[name](chosen.rounds), times or chosen.times, chosen.seed, {"case": name})


def counted_case(text: str) -> tuple[str, int | None]:
    """A case, and how often it is killed, if that is not as often as methods are."""
    name, _, times = text.partition("=")
    if name not in CASES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(CASES)}, got {name}")
    return name, int(times) if times else None


def told(case: Case, times: int, seed: int, about: dict[str, str]) -> None:
    """Kill, and print what came of it."""
    with TemporaryDirectory() as place:
        line = kill_and_resume(case, times, seed, Path(place))
    print({**about, **line}, flush=True)


if __name__ == "__main__":
    main()
