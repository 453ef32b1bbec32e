"""Every example runs, and stays short enough to be read."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_all_five_are_there() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"quickstart", "own_model", "own_data", "own_method", "compare"} <= names
