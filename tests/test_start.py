"""What is loaded, and Ctrl-C meanwhile."""

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


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("wecfl.cli", {"flwr", "onnx", "opacus", "ray"}),
        ("wecfl.flower.client", {"altair", "onnx", "pandas", "ray", "scipy", "sklearn"}),
    ],
)
def test_nothing_is_loaded_in_vain(module: str, heavy: set[str]) -> None:
    """A client is a new process for each message: what it loads, it loads in every round."""
    code = f"import sys, {module}; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "\n"
