"""Every example runs, and stays short enough to be read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    done = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, env=os.environ, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_all_five_are_there() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"quickstart", "own_model", "own_data", "own_method", "compare"} <= names
