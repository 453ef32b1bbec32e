"""Kills runs at random moments and goes on with them: `python tests/kills.py --times 100`.

Of each of the methods on each of the engines, if several are named; a line for each pair, which
also says what the run kept by owner (`wecfl.core.state.State`) and its clusters by round.

A run is begun in a child process, which is killed (SIGKILL) after a random time, or by itself
in the middle of writing a file; another child goes on with it; and so on until it is finished.
It must then be the same, to the bit, as one that was left alone.
"""

import argparse
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
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
from wecfl.folder import files
from wecfl.folder.readers import config_of, read_metrics, read_states
from wecfl.from_config import federation_of, method_of
from wecfl.methods import METHODS
from wecfl.models import make

OPERATIONS = {"fsync": os, "truncate": os, "replace": Path, "unlink": Path, "mkdir": Path}
"""What the writing of a run folder is made of, but for the content of its files."""

OWNERS = ("memory", "cluster", "known", "whole")
"""Who keeps something between rounds."""


def wecfl_adam() -> Method:
    """FedAdam inside WeCFL's clusters, of which there are as many as it finds."""
    return methods.wecfl("auto").replace(name="wecfl-adam", aggregation=Adaptive(adam, 0.1))


def cfl_adam(eps1: float, eps2: float) -> Method:
    """The same where clusters are parted later on, and leave their moments to both parts."""
    parted = methods.cfl(eps1, eps2)
    return parted.replace(name="cfl-adam", aggregation=Adaptive(adam, 0.1))


COMBINED: dict[str, Callable[..., Method]] = {"wecfl-adam": wecfl_adam, "cfl-adam": cfl_adam}
"""Methods that only this script knows."""

PARTING: dict[str, Any] = {"eps1": 0.4, "eps2": 0.2, "lr": 0.01}
"""CFL parts its clusters in rounds 2, 3 and 4, not never, as it would on so little data."""
CHOICES: dict[str, dict[str, Any]] = {
    "cfl": PARTING, "cfl-adam": PARTING, "flhc": {"cluster_round": 2}
}  # fmt: skip
"""By method, what differs from the choices of the others."""

torch.set_num_threads(1)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment: int, after: bool) -> None:
    """Kill this process before (or after) the given one of its operations on files."""
    left = [moment]

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
    whole = files._safetensors

    def torn(arrays: Any, about: Any) -> Iterator[bytes | memoryview]:
        for part in whole(arrays, about):
            left[0] -= 1
            if left[0] < 0:
                yield part[: len(part) // 2]
                die()
            yield part

    files._safetensors = torn


def child(config: Config, folder: Path, inject: tuple[int, bool] | None) -> int:
    """Begin a run or go on with it, in a process of its own."""
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
    """A small run; a linear model where the method does not keep a layer of it from the server."""
    config = Config(
        method=method, engine=engine, clusters=2, clients=6, groups=2, rounds=rounds, steps=3,
        workers=1, **CHOICES.get(method, {}),
    )  # fmt: skip
    whole = method_of(config).shared == "all"
    return config.model_copy(update={"model": "logistic" if whole else "mlp"})


def warm(config: Config) -> None:
    """What is loaded here need not be loaded by each child."""
    federation = federation_of(config)
    model = make(config.model, shape=federation.shape, classes=federation.classes, seed=0)
    make_engine("native", federation, model, workers=1).close()


def kill_and_resume(config: Config, times: int, seed: int, place: Path) -> dict[str, Any]:
    """Until runs have been killed `times` times over all: how many runs that were, and kills."""
    draw = random.Random(f"{config.method} {seed}")
    warm(config)
    began = time.perf_counter()
    # Not in this process: OpenMP, once used, does not survive a fork.
    _, status = os.waitpid(child(config, place / "whole", None), 0)
    if status:
        raise AssertionError(f"{config.method}: a run that was left alone ended with {status}")
    lasted = time.perf_counter() - began
    told = {"kills": 0, "while writing": 0, "runs": 0}
    while told["kills"] < times:
        folder = place / f"run {told['runs']}"
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
                told["kills"] += 1
                told["while writing"] += bool(inject)
                # The last file of a run: what was killed after it had nothing left to do.
                finished = (folder / "summary.json").is_file()
        if other := names(place / "whole") ^ names(folder):
            raise AssertionError(f"{config.method}: only one of two runs has {sorted(other)}")
        same_folders(place / "whole", folder)
        told["runs"] += 1
    return told | kept(place / "whole")


def names(folder: Path) -> set[str]:
    """The files of a run."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def kept(folder: Path) -> dict[str, Any]:
    """What there was to lose: the names of the arrays by owner, and the clusters by round."""
    [state, *_] = read_states(folder)
    held = {owner: sorted(getattr(state, owner)) for owner in OWNERS}
    sizes = [len(record["sizes"]) for record in read_metrics(folder)]
    return {"kept": {owner: told for owner, told in held.items() if told}, "clusters": sizes}


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
            told = kill_and_resume(config, chosen.times, chosen.seed, Path(place))
        print({"method": method, "engine": engine, **told}, flush=True)


if __name__ == "__main__":
    main()
