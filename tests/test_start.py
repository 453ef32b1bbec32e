"""Ctrl-C while the command is still loading."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SLOW = """
import pathlib, time
pathlib.Path("loading").touch()
try:
    time.sleep(60)
except BaseException:  # as libraries do that try whether something is there
    pass
"""


@pytest.mark.parametrize("module", ["numpy", "torch", "cyclopts"])
def test_ctrl_c_during_the_imports_is_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", "from wecfl_main import main; main()", "methods"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "loading").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "wecfl: interrupted\n")
