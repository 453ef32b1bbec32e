"""A machine without anything, for all tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data and programs, on which nobody waits; returns its cache."""
    monkeypatch.delenv("WECFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tmp_path / "cache" / "wecfl"
