"""Shows which bits moved since a revision: `python tests/freeze.py --base HEAD~1`.

A matrix of short runs (methods × engines × conditions) is made twice on this machine, each time in
a fresh process: with a worktree of the revision and with a copy of the working tree. What they come
to is compared to the bit. It depends on the instruction set, so nothing of it is kept.
Exit code 0: nothing moved; 1: something did; 2: it could not be measured.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from itertools import product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

ROOT = Path(__file__).parents[1]
NATIVE = Path("wecfl/engine/native")

ENGINES = ("native", "torch")
ALL: dict[str, Any] = {
    "model": "mlp",
    "rounds": 4,
    "steps": 4,
    "lr": 0.05,
    "workers": 1,
    "objectives": True,
}
CONFIGURED: dict[str, Any] = {  # of all runs but those from Python values
    "dataset": "digits", "clients": 10, "groups": 3, "clusters": 3, "seed": 1,
    "eps1": 2.0, "eps2": 0.1, "threshold": 0.9,  # so that CFL and FL+HC find some clusters
}  # fmt: skip
CONDITIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unreliable": {"participation": 0.5, "dropout": 0.2, "stragglers": 0.3},
    "attacked": {"attack": "sign-flip", "aggregation": "median"},
    "noisy": {"clip": 1.0, "noise": 0.1, "model": "logistic", "objectives": False},
    "auto": {"clusters": "auto"},
    "newcomers": {"newcomers": 0.2},
    "columns": {},  # the first layer is private, see `run_columns`
    "workers": {"workers": 2},
}
RARE = {"auto": ("wecfl", "fesem"), "workers": ("wecfl",)}  # under which only these are run
METRICS = (  # of the rounds' records: all keys but those of clocks and networks
    "round", "accuracy", "macro_f1", "ari", "nmi", "clusters", "sizes", "churn", "cosine", "F", "R",
    "replies", "attack", "notes", "clients",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What one run came to."""

    outcome: str = "finished"  # or `refused: …`, by a WecflError, or `failed: …`, by any other
    digests: dict[str, str] = field(default_factory=dict)  # of the arrays
    metrics: dict[str, list[str]] = field(default_factory=dict)  # the JSON of each round
    arrays: Arrays = field(default_factory=dict)


def cases(methods: Iterable[str], only: Iterable[str] = ()) -> Iterator[str]:
    """The matrix, as `METHOD ENGINE CONDITION`; `only` may name some of each kind."""
    engines, conditions = ({*only} & {*kind} for kind in (ENGINES, CONDITIONS))
    named = {*only} - engines - conditions
    for method, engine, condition in product(methods, ENGINES, CONDITIONS):
        asked = (method, named), (engine, engines), (condition, conditions)
        run = method in RARE.get(condition, (method,))
        if run and all(word in some or not some for word, some in asked):
            yield f"{method} {engine} {condition}"


def measure(name: str, **changes: Any) -> Case:
    """Run one case, whose choices may be changed."""
    import wecfl

    method, engine, condition = name.split()
    try:
        if condition == "columns":
            return measured(run_columns(method, engine=engine, **ALL | changes))
        choices = ALL | CONFIGURED | CONDITIONS[condition] | changes
        return measured(wecfl.run_config(wecfl.Config(method=method, engine=engine, **choices)))
    except wecfl.errors.WecflError as error:
        return Case(f"refused: {error}")
    except Exception as error:  # of one case; the others are still worth their time
        return Case(f"failed: {type(error).__name__}: {error}")


def run_columns(method: str, **choices: Any) -> Any:
    """A run from Python values, in which each client keeps its first layer to itself."""
    from sklearn.datasets import load_digits

    import wecfl

    x, y = load_digits(return_X_y=True)
    xs = [(x[i::10] / 16).astype(np.float32) for i in range(10)]
    ys = [(y[i::10] + i % 2) % 10 for i in range(10)]  # clients of two kinds
    federation = wecfl.Federation.from_arrays(xs, ys)
    if "steps" in inspect.signature(wecfl.run).parameters:  # the first edition
        value = wecfl.methods.METHODS[method](3, 0.95).replace(shared="~1.*")
        return wecfl.run(federation, value, **choices)
    taken = wecfl.methods.options(method)
    value = wecfl.methods.named(method, **({"k": 3} if "k" in taken else {}))
    given = wecfl.Config(method=method, **choices)
    grouped = wecfl.from_config.options_of(given) | {"method": value.replace(shared="~1.*")}
    return wecfl.run(federation, **grouped)


def measured(result: Any) -> Case:
    """What is compared of a result, by what is public of it."""
    state, late = result.states[0], result.newcomers
    served = [result.model(client=i).state_dict().values() for i in range(len(state.labels))]
    models = [np.concatenate([each.numpy().ravel() for each in tensors]) for tensors in served]
    arrays = {"centers": state.centers, "labels": state.labels, "models": np.stack(models)}
    metrics = {key: [record.get(key) for record in result.records] for key in METRICS}
    metrics["clients"] = [
        {name: values for name, values in each.items() if not name.startswith("bytes_")}
        for each in metrics["clients"]
    ]
    metrics["newcomers"] = [] if late is None else late.to_dict("records")
    metrics["privacy"] = [result.summary.get("privacy")]
    text = partial(json.dumps, default=lambda number: number.tolist())  # NumPy's numbers
    texts = {key: [text(each) for each in values] for key, values in metrics.items()}
    return Case("finished", digests(arrays), texts, arrays)


def digests(arrays: Arrays) -> dict[str, str]:
    """SHA-256 of the bytes of each."""
    return {key: hashlib.sha256(each.tobytes()).hexdigest() for key, each in arrays.items()}


def record(file: Path, only: Iterable[str]) -> None:
    """Run the matrix; digests and metrics go into a JSON file, the arrays into a .npz beside it."""
    import wecfl

    done = {name: measure(name) for name in cases(wecfl.methods.METHODS, only)}
    said = {name: asdict(case) | {"arrays": {}} for name, case in done.items()}
    file.write_text(json.dumps(said, indent=1))
    arrays = {f"{name}/{key}": done[name].arrays[key] for name in done for key in done[name].arrays}
    np.savez(file.with_suffix(".npz"), allow_pickle=False, **arrays)


def read(file: Path) -> dict[str, Case]:
    """What `record` wrote."""
    done = {name: Case(**said) for name, said in json.loads(file.read_text()).items()}
    with np.load(file.with_suffix(".npz")) as arrays:
        for name, case in done.items():
            case.arrays.update({key: arrays[f"{name}/{key}"] for key in case.digests})
    return done


def moved(base: Case, new: Case) -> list[str]:
    """What is not the same: arrays by how much, metrics from which round (newcomer) on."""
    kinds = [case.outcome.partition(":")[0] for case in (base, new)]
    if "failed" in kinds or kinds[0] != kinds[1]:
        return [f"{base.outcome} → {new.outcome}"]
    told = [
        f"{key} ({_gap(base.arrays[key], new.arrays[key])})"
        for key in base.digests
        if base.digests[key] != new.digests[key]
    ]
    keys = []
    for key in base.metrics | new.metrics:
        pairs = enumerate(zip_longest(*(each.metrics.get(key, ()) for each in (base, new))), 1)
        if first := next((t for t, (a, b) in pairs if a != b), None):
            keys.append(f"{key} from {first}")
    return told + [f"metrics ({', '.join(keys)})"] * bool(keys)


def _gap(a: NDArray[Any], b: NDArray[Any]) -> str:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{a.shape} → {b.dtype}{b.shape}"
    return f"by {np.abs(a.astype(np.float64) - b).max():.3g}"


def compare(base: Mapping[str, Case], new: Mapping[str, Case]) -> bool:
    """Print a line for each case that is not the same, and a summary; did one move?"""
    counts = dict.fromkeys(("same", "moved", "refused", "new"), 0)
    for name in {**base, **new}:
        if name not in base:
            kind, told = "new", [new[name].outcome]
        elif told := moved(base[name], new[name]) if name in new else ["gone"]:
            kind = "moved"
        else:
            kind, *told = base[name].outcome.split(": ", 1)
            kind = "same" if kind == "finished" else kind
        counts[kind] += 1
        if kind != "same":
            print(f"{name}: {kind}: {'; '.join(told)}")
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{sum(counts.values())} cases: {said}")
    return counts["moved"] > 0


def only_from(tree: Path) -> None:
    """Have `wecfl` imported from this tree, also where an editable install would come first."""
    finders = [(finder, getattr(finder, "__module__", "")) for finder in sys.meta_path]
    sys.meta_path[:] = [finder for finder, module in finders if "editable" not in module]
    for name in ("wecfl", ".".join([*NATIVE.parts, "_native"])):
        file = str(import_module(name).__file__)
        if not Path(file).resolve().is_relative_to(tree.resolve()):
            raise SystemExit(f"freeze: {name} comes from {file}, not from {tree}")


def git(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """In this repository; the caller looks at the exit code."""
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)


@contextmanager
def sides(commit: str) -> Iterator[tuple[Path, Path]]:
    """A worktree of the commit and a copy of the working tree, each with its native extension.

    It is built for both if their sources differ; else both get the newest one that is installed.
    """
    with TemporaryDirectory(prefix="wecfl-freeze-") as place:
        base, new = Path(place, "base"), Path(place, "new")
        for part in ("src", "native"):
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / part, new / part, ignore=ignored)
        places = [Path(each) / NATIVE for each in (str(ROOT / "src"), *sys.path)]
        ready = [file for each in places for file in each.glob("_native*.so")]
        if git("diff", "--quiet", commit, "--", "native").returncode:
            ready = []
        try:
            if (added := git("worktree", "add", "--detach", base, commit)).returncode:
                raise SystemExit(f"freeze: {added.stderr.strip()}")
            for tree in (base, new):
                file = max(ready, key=lambda each: each.stat().st_mtime) if ready else built(tree)
                shutil.copy(file, tree / "src" / NATIVE)
            yield base, new
        finally:
            git("worktree", "remove", "--force", base)


def built(tree: Path) -> Path:
    """The native extension of a tree, as `make sanitize` builds it but without sanitizers."""
    print(f"{tree.name}: building the native extension", flush=True)
    source, build = str(tree / "native"), str(tree / "build")
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    for words in (["-S", source, "-B", build, *options], ["--build", build, "--parallel", "2"]):
        subprocess.run(["cmake", *words], check=True, stdout=subprocess.DEVNULL)
    return next(Path(build).glob("_native*.so"))


def recorded(tree: Path, only: Iterable[str]) -> dict[str, Case]:
    """What the runs of a tree come to, in a fresh process that imports it."""
    began, file = time.perf_counter(), tree.with_suffix(".json")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "--record", str(file), "--tree", str(tree), "--only", *only]
    subprocess.run(words, check=True, env=environment)
    done = read(file)
    print(f"{tree.name}: {len(done)} runs, {time.perf_counter() - began:.0f} s", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", metavar="REV", default="HEAD", help="what to compare with")
    parser.add_argument("--only", metavar="WORD", nargs="*", default=[], help="of cases' names")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write what is found, no more")
    parser.add_argument("--tree", type=Path, help="with --record: import wecfl from here alone")
    chosen = parser.parse_args()
    if chosen.record:
        if chosen.tree:
            only_from(chosen.tree)
        record(chosen.record, chosen.only)
        return
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{chosen.base}^{{commit}}").stdout.strip()
        if not commit:
            raise SystemExit(f"freeze: git knows no commit '{chosen.base}'")
        with sides(commit) as trees:
            before, after = (recorded(tree, chosen.only) for tree in trees)
        unknown = {*chosen.only}.difference(*(name.split() for name in before | after))
        if unknown or not before | after:
            raise SystemExit(f"freeze: no case is named {' '.join(unknown or chosen.only)}")
        code = int(compare(before, after))
    except (SystemExit, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
