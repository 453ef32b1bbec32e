"""Shows how many small mistakes the tests would catch: `python tests/mutants.py` (`make mutants`).

Each mutant is one wrong line: a comparison turned around, λ left out, a copy not made, a check
skipped, another key of the randomness. It is put into a copy of the tree, and the tests that should
notice run there until the first failure. The text to change is searched for in `src/`, so that a
mutant outlives the renaming of files; where it is not found exactly once, the mutant is stale and
must be mended.
Exit code 0: all are caught; 1: some survive; 2: it could not be measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Literal

ROOT = Path(__file__).parents[1]
NATIVE = "wecfl.engine.native._native"
PARTS = ("src", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "mkdocs.yml",
         "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")  # fmt: skip
"""What tests read of the tree."""
MAX_SECONDS = 1800
"""A mutant whose tests take longer (an endless loop) counts as caught."""

SELF = "the doctests of the file that is changed"

Verdict = Literal["caught", "survived", "stale"]


@dataclass(frozen=True, eq=False)
class Mutant:
    """One mistake."""

    room: str
    mistake: str
    """What it is, in words."""
    edits: Sequence[tuple[str, str]]
    """The right text and the wrong one; the first whose right text is found in `src/` counts."""
    tests: str
    """What should notice, in the words of pytest."""


def mutant(room: str, mistake: str, right: str, wrong: str, tests: str, *others: str) -> Mutant:
    """A mutant; `others` are further pairs of a right and a wrong text, for other spellings."""
    pairs = [right, wrong, *others]
    return Mutant(room, mistake, list(zip(pairs[::2], pairs[1::2], strict=True)), tests)


MUTANTS = (
    # -- core -------------------------------------------------------------------------------------
    mutant(
        "core", "who joins the clusters joins the farthest",
        "centers[inhabited]).argmin(axis=1)]", "centers[inhabited]).argmax(axis=1)]",
        "tests/test_conditions.py",
    ),
    mutant(
        "core", "the clustering draws the same in every round",
        'rng.stream(setting.seed, "clustering", state.round)',
        'rng.stream(setting.seed, "clustering")',
        "tests/conformance/test_methods.py",
    ),
    mutant(
        "core", "M averages without λ",
        "importance[heard], engine.sizes[heard]",
        "np.ones(heard.sum()), engine.sizes[heard]",
        "tests/test_twin.py",
    ),
    mutant(
        "core", "the same replies are lost in every round",
        'self.draws("reply", m, sent.round)', 'self.draws("reply", m, 0)',
        "tests/test_conditions.py",
    ),
    mutant(
        "core", "what a client received is not copied before a program overwrites it",
        'np.array(model[:, private] if name == "private" else model)',
        'np.asarray(model[:, private] if name == "private" else model)',
        "tests/conformance/test_programs.py tests/conformance/test_twins.py",
    ),
    mutant(
        "core", "no update is refused for its length",
        "(length > self.refuse_above * median)", "(length > np.inf * median)",
        "tests/test_conditions.py",
    ),
    # -- bilevel ----------------------------------------------------------------------------------
    mutant(
        "bilevel", "the trimmed mean cuts off the lower end only",
        "(1 - self.share) * total", "1.0 * total",
        "tests/bilevel/test_aggregation.py",
    ),
    mutant(
        "bilevel", "Krum trusts one client too few",
        "max(n - 3, 0) // 2", "max(n - 2, 0) // 2",
        "tests/bilevel/test_aggregation.py",
    ),
    mutant(
        "bilevel", "the silhouette counts a client as its own neighbour",
        "rest = total[labels] - weight", "rest = total[labels]",
        "tests/bilevel/test_auto.py",
    ),
    mutant(
        "bilevel", "K-means clusters without λ",
        "np.bincount(which, weights=view.importance)", "np.bincount(which)",
        "tests/bilevel/test_clustering.py tests/test_twin.py",
    ),
    mutant(
        "bilevel", "K-means takes the last start, not the best",
        "best = min(fits, key=lambda fit: fit.inertia_)", "best = fits[-1]",
        "tests/bilevel/test_clustering.py tests/lemmas/test_lemmas.py",
    ),
    mutant(
        "bilevel", "a server optimizer overwrites the moments of the state before",
        "np.full((k, n), start)).copy()", "np.full((k, n), start))",
        "tests/conformance tests/test_twins.py",
    ),
    mutant(
        "bilevel", "SCAFFOLD adds the offset that it should take away",
        'pull -= sent["offset"][heard]', 'pull += sent["offset"][heard]',
        "tests/conformance/test_twins.py",
    ),
    mutant(
        "bilevel", "new clusters are numbered from the wrong place",
        "labels[labels < 0] = len(old) + np.arange(",
        "labels[labels < 0] = len(old) - 1 + np.arange(",
        "tests/bilevel/test_clustering.py tests/bilevel/test_auto.py",
    ),
    # -- channel ----------------------------------------------------------------------------------
    mutant(
        "channel", "attackers are drawn by position, not by key",
        "rng.stream(seed, who, 0, int(key)).random() for key in keys",
        "rng.stream(seed, who, 0, i).random() for i, _ in enumerate(keys)",
        f"{SELF} tests/test_attacks.py",
    ),
    mutant(
        "channel", "an attacker sends the same noise in every round",
        'rng.stream(replies.seed, "attack", replies.round, int(key))',
        'rng.stream(replies.seed, "attack", 0, int(key))',
        "tests/test_attacks.py",
    ),
    mutant(
        "channel", "a little is enough, to the wrong side",
        "mean - z * known.std(", "mean + z * known.std(",
        "tests/test_attacks.py",
    ),
    mutant(
        "channel", "ε is told as if two data sets differed by C, not by 2C",
        "noise_multiplier=noise / 2", "noise_multiplier=noise",
        "tests/test_conditions.py",
    ),
    # -- data -------------------------------------------------------------------------------------
    mutant(
        "data", "all classes are rounded alike",
        "offset = (np.arange(len(matrix)) + 0.5) / len(matrix)",
        "offset = np.full(len(matrix), 0.5)",
        "tests/data/test_partition.py",
    ),
    mutant(
        "data", "nobody looks whether clients have test samples",
        'or _small_clients(test, min_test, "test")', "",
        "tests/data/test_partition.py",
    ),
    mutant(
        "data", "a partition with names of its own renames the classes of the data set",
        "y = y.copy()", "pass",
        "tests/data/test_federation.py tests/data/test_partition.py",
    ),
    mutant(
        "data", "validation tests on what is trained on",
        "for rows, cut in pairs) for side in (0, 1))",
        "for rows, cut in pairs) for side in (0, 0))",
        f"{SELF} tests/data/test_federation.py",
    ),
    # -- folder -----------------------------------------------------------------------------------
    mutant(
        "folder", "one checkpoint less is kept",
        "_manifests(folder)[:-KEPT_CHECKPOINTS]", "_manifests(folder)[: 1 - KEPT_CHECKPOINTS]",
        "tests/runs/test_resume.py",
    ),
    mutant(
        "folder", "a manifest that was changed is believed",
        'if signed.get("sha256") != _digest(manifest):', "if False:",
        "tests/runs/test_resume.py tests/fuzz/test_fuzz_runs.py",
    ),
    mutant(
        "folder", "lines after the checkpoint stay when a run goes on",
        "os.truncate(self._path, self.length)", "pass",
        "tests/runs/test_resume.py",
    ),
    mutant(
        "folder", "two processes may write one folder",
        "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "tests/runs/test_resume.py tests/test_cli.py",
    ),
    mutant(
        "folder", "a run goes on with other data",
        "if saved.data != data:", "if False:",
        "tests/runs/test_resume.py",
    ),
    # -- engine -----------------------------------------------------------------------------------
    mutant(
        "engine", "losses are estimated on the same samples in every round",
        'rng.stream(self.seed, "losses", self.round, int(federation.keys[client]))',
        'rng.stream(self.seed, "losses", 0, int(federation.keys[client]))',
        "tests/engine/test_torch.py tests/engine/test_native.py",
    ),
    mutant(
        "engine", "who is not asked loses what it kept",
        "table[...] = 0 if before is None else before", "table[...] = 0",
        "tests/conformance tests/test_conditions.py",
    ),
    mutant(
        "engine", "a part of a round goes on for too many steps",
        "[: max(done - self.begin, 0)]", "[:done]",
        "tests/conformance/test_twins.py tests/conformance/test_programs.py",
    ),
    # -- runs -------------------------------------------------------------------------------------
    mutant(
        "runs", "the mean gradient of a round forgets λ",
        '"0": float(np.average(squares[0], weights=share)),',
        '"0": float(np.average(squares[0])),',
        "tests/lemmas/test_theory.py",
    ),
    mutant(
        "runs", "members are compared with means that they are part of",
        "others = (total * self.centers[place] - own * self.points[i]) / (total - own)",
        "others = self.centers[place]",
        "tests/runs/test_newcomers.py",
    ),
    mutant(
        "runs", "a newcomer with few samples is compared with members that have many",
        "np.interp(1 / np.sqrt(samples), place", "np.interp(place[0], place",
        "tests/runs/test_newcomers.py",
    ),
    mutant(
        "runs", "the last round is not scored",
        "(round % self._every == 0 or round == self._last)",
        "round % self._every == 0",
        "tests/runs/test_experiment.py tests/test_conditions.py",
    ),
    # -- flower -----------------------------------------------------------------------------------
    mutant(
        "flower", "a client may change its weight later",
        'if metrics.get("samples") != samples:', "if False:",
        "tests/flower/test_flower.py",
    ),
    mutant(
        "flower", "two clients may have one key",
        "if any(known.key == place.key for known in self.places):", "if False:",
        "tests/flower/test_flower.py",
    ),
    mutant(
        "flower", "places are sorted by name, not by key",
        "self.places.sort(key=lambda place: place.key)",
        "self.places.sort(key=lambda place: place.name)",
        "tests/flower/test_flower.py",
    ),
    # -- theory -----------------------------------------------------------------------------------
    mutant(
        "theory", "one assumption that is met is enough to refute a lemma",
        "sound = all(assumption.met for assumption in self.assumptions)",
        "sound = any(assumption.met for assumption in self.assumptions)",
        "tests/lemmas/test_theory.py tests/lemmas/test_check.py",
    ),
    # -- report, paper ----------------------------------------------------------------------------
    mutant(
        "report", "of two runs that agree the first counts, not the last",
        'frame.drop_duplicates([*key, "seed"], keep="last")',
        'frame.drop_duplicates([*key, "seed"], keep="first")',
        "tests/report/test_tables.py",
    ),
    mutant(
        "paper", "the gap to the paper has the wrong sign",
        'gap = frame[name] - frame[f"paper_{name}"]', 'gap = frame[f"paper_{name}"] - frame[name]',
        "tests/test_reproduce.py",
    ),
)  # fmt: skip

STARTUP = '''\
"""Has `wecfl` imported from `src` of this tree, also where an editable install would come first."""
import sys

modules = [(finder, getattr(finder, "__module__", "")) for finder in sys.meta_path]
sys.meta_path[:] = [finder for finder, module in modules if "editable" not in module]
'''
"""Python runs `sitecustomize.py` at its start, in child processes as well."""


class Tree:
    """A copy of the working tree, in which one text at a time is changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for part in PARTS:
            if (ROOT / part).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(ROOT / part, place / part, ignore=ignored)
            elif (ROOT / part).exists():
                shutil.copy(ROOT / part, place / part)
        found = importlib.util.find_spec(NATIVE)
        if found is None or found.origin is None:
            raise SystemExit("mutants: the native kernels are not built: make setup")
        shutil.copy(found.origin, place / "src" / Path(*NATIVE.split(".")).parent)
        (place / "startup").mkdir()
        (place / "startup" / "sitecustomize.py").write_text(STARTUP)

    def find(self, one: Mutant) -> tuple[Path, str, str] | str:
        """The file, the right text and the wrong one; or what is wrong with the mutant."""
        texts = {file: file.read_text() for file in sorted((self.place / "src").rglob("*.py"))}
        for test in one.tests.replace(SELF, "").split():
            if not (self.place / test.partition("::")[0]).exists():
                return f"no such test: {test}"
        problems = []
        for right, wrong in one.edits:
            places = [file for file, text in texts.items() for _ in range(text.count(right))]
            if len(places) == 1:
                return places[0], right, wrong
            problems.append(f"found {len(places)} times in src: {right}")
        return "; ".join(problems)

    @contextmanager
    def changed(self, file: Path, right: str, wrong: str) -> Iterator[None]:
        """With the mistake in it."""
        before = file.read_text()
        file.write_text(before.replace(right, wrong))
        try:
            yield
        finally:
            file.write_text(before)

    def test(self, words: Sequence[str]) -> tuple[int, list[str]]:
        """Run pytest: its exit code and the tests that failed."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.place / 'startup'}{os.pathsep}{self.place / 'src'}",
            "PYTHONDONTWRITEBYTECODE": "1",  # a file may change twice in a second
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        try:
            done = subprocess.run(
                command, cwd=self.place, env=environment, capture_output=True, text=True,
                check=False, timeout=MAX_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1, [f"more than {MAX_SECONDS} s"]
        failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.M)
        if done.returncode not in (0, 1, 2) or bool(done.returncode) != bool(failed):
            told = done.stdout + done.stderr
            raise SystemExit(f"mutants: {' '.join(command)} ended with {done.returncode}:\n{told}")
        return done.returncode, failed

    def judge(self, one: Mutant, broken: Sequence[str] = ()) -> tuple[Verdict, str]:
        """What becomes of a mutant, and by which test or why not.

        Tests that are broken, and fail also without a mistake, are left out.
        """
        found = self.find(one)
        if isinstance(found, str):
            return "stale", found
        file, right, wrong = found
        words = one.tests.replace(SELF, str(file.relative_to(self.place))).split()
        left_out = [f"--deselect={test}" for test in broken]
        with self.changed(file, right, wrong):
            code, failed = self.test(["-x", *words, *left_out])
        return ("caught", failed[0]) if code else ("survived", one.tests)


def judged(
    mutants: Sequence[Mutant], jobs: int, broken: Sequence[str] = ()
) -> Iterator[tuple[Mutant, Verdict, str]]:
    """Each mutant in turn, several at a time in a tree each."""
    with TemporaryDirectory(prefix="wecfl-mutants-") as folder:
        free: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            place = Path(folder, str(number))
            place.mkdir()
            free.put(Tree(place))

        def judge(one: Mutant) -> tuple[Mutant, Verdict, str]:
            tree = free.get()
            try:
                return one, *tree.judge(one, broken)
            finally:
                free.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(judge, mutants)


def failing(tests: Sequence[str]) -> list[str]:
    """Which of these fail also without a mistake."""
    if not tests:
        return []
    with TemporaryDirectory(prefix="wecfl-mutants-") as folder:
        return Tree(Path(folder)).test(sorted(set(tests)))[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="ROOM", nargs="*", help="mutants of these rooms")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--stale", action="store_true", help="look for stale mutants, run nothing")
    chosen = parser.parse_args()
    mutants = [one for one in MUTANTS if not chosen.only or one.room in chosen.only]
    began = time.perf_counter()
    counts: dict[Verdict, int] = {"caught": 0, "survived": 0, "stale": 0}
    if chosen.stale:
        with TemporaryDirectory(prefix="wecfl-mutants-") as folder:
            tree = Tree(Path(folder))
            found = [(one, tree.find(one)) for one in mutants]
        for one, place in found:
            if isinstance(place, str):
                print(f"stale     {one.room}: {one.mistake}\n          {place}")
        sys.exit(2 * any(isinstance(place, str) for _, place in found))
    broken: list[str] = []
    while mutants:
        caught_by: dict[Mutant, str] = {}
        for one, verdict, by in judged(mutants, chosen.jobs, broken):
            counts[verdict] += 1
            caught_by |= {one: by} if verdict == "caught" else {}
            print(f"{verdict:9} {one.room}: {one.mistake}\n          {by}", flush=True)
        failed = failing([by for by in caught_by.values() if "::" in by])
        mutants = [one for one, by in caught_by.items() if by in failed]
        counts["caught"] -= len(mutants)
        broken += failed
        for test in failed:
            print(f"fails without a mistake, so that others must catch: {test}", flush=True)
    stale = f", {counts['stale']} stale" if counts["stale"] else ""
    print(f"{time.perf_counter() - began:.0f} s")
    print(f"{counts['caught']} caught, {counts['survived']} survived{stale}")
    sys.exit(2 if counts["stale"] else int(counts["survived"] > 0))


if __name__ == "__main__":
    main()
