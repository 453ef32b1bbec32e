"""Kills runs at random moments and resumes them: `python tests/kills.py --times 100`.

It does so for every named method on every named engine, and prints a line for each pair. The line
also has what the run kept, by owner (`wecfl.core.state.State`), and its clusters by round.

A run begins in a child process. This is killed (SIGKILL) after a random time, or kills itself in
the middle of writing a file. Another child resumes the run, and so on until it is finished. It must
then be the same, to the bit, as a run that was left alone.
"""

import argparse
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from helpers import same_folders
from wecfl import methods
from wecfl.bilevel.optimizer import Adaptive, adam
from wecfl.config import Config
from wecfl.core.method import Method
from wecfl.engine import make_engine
from wecfl.experiment import run_config
from wecfl.folder.readers import config_of, read_metrics, read_states
from wecfl.from_config import federation_of, method_of
from wecfl.methods import METHODS
from wecfl.models import make

OPERATIONS = {"fsync": os, "truncate": os, "replace": Path, "unlink": Path, "mkdir": Path}
"""The operations that write a run folder, except those that write the content of files."""

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


def child(config: Config, folder: Path, inject: tuple[int, bool] | None) -> int:
    """Begin or resume a run in a process of its own; return the number of the process."""
    begun = (folder / "config.toml").exists()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if inject:
            die_at(*inject)
        run_config(config_of(folder) if begun else config, out=folder, resume=begun)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def configured(method: str, engine: str, rounds: int) -> Config:
    """A small run, with a linear model unless the method keeps a layer from the server."""
    config = Config(
        method=method, engine=engine, clusters=2, clients=6, groups=2, rounds=rounds, steps=3,
        workers=1, **CHOICES.get(method, {}),
    )  # fmt: skip
    whole = method_of(config).shared == "all"
    return config.model_copy(update={"model": "logistic" if whole else "mlp"})


def warm(config: Config) -> None:
    """Load here what each child would otherwise have to load."""
    federation = federation_of(config)
    model = make(config.model, shape=federation.shape, classes=federation.classes, seed=0)
    make_engine("native", federation, model, workers=1).close()


def kill_and_resume(config: Config, times: int, seed: int, place: Path) -> dict[str, Any]:
    """Kill runs `times` times in all; return the number of runs and kills, and what was kept."""
    draw = random.Random(f"{config.method} {seed}")
    warm(config)
    began = time.perf_counter()
    # Not in this process: OpenMP, once used, does not survive a fork.
    _, status = os.waitpid(child(config, place / "whole", None), 0)
    if status:
        raise AssertionError(f"{config.method}: a run that was left alone ended with {status}")
    lasted = time.perf_counter() - began
    counts = {"kills": 0, "while writing": 0, "runs": 0}
    while counts["kills"] < times:
        folder = place / f"run {counts['runs']}"
        finished = False
        while not finished:
            inject = (draw.randrange(40), draw.random() < 0.5) if draw.random() < 0.5 else None
            pid = child(config, folder, inject)
            if not inject:
                time.sleep(draw.uniform(0, lasted))
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            finished = status == 0
            if not finished:
                if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
                    raise AssertionError(f"{folder} ended with status {status}")
                counts["kills"] += 1
                counts["while writing"] += bool(inject)
                # This is the last file of a run: after it there is nothing left to do.
                finished = (folder / "summary.json").is_file()
        if other := names(place / "whole") ^ names(folder):
            raise AssertionError(f"{config.method}: only one of two runs has {sorted(other)}")
        same_folders(place / "whole", folder)
        counts["runs"] += 1
    return counts | kept(place / "whole")


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
    parser.add_argument("--method", nargs="+", choices=METHODS, default=["wecfl"], metavar="NAME")
    parser.add_argument("--engine", nargs="+", choices=["native", "torch"], default=["native"])
    chosen = parser.parse_args()
    for method, engine in product(chosen.method, chosen.engine):
        config = configured(method, engine, chosen.rounds)
        with TemporaryDirectory() as place:
            line = kill_and_resume(config, chosen.times, chosen.seed, Path(place))
        print({"method": method, "engine": engine, **line}, flush=True)


if __name__ == "__main__":
    main()
