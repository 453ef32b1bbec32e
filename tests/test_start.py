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


@pytest.mark.parametrize(
    ("module", "words"),
    [("cyclopts", ["methods"]), ("numpy", ["methods"]), ("torch", ["run"])],
)
def test_ctrl_c_during_the_imports_is_one_line(
    tmp_path: Path, module: str, words: list[str]
) -> None:
    (tmp_path / f"{module}.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", "from wecfl_main import main; main()", *words],
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


HEAVY = {"altair", "jinja2", "numpy", "pandas", "scipy", "sklearn", "torch"}
"""What takes a tenth of a second or more to load."""

HELP = """
import sys
from wecfl.cli import app

def show_all(app):
    app.help_print([])
    for name in app:
        if not name.startswith("-"):
            show_all(app[name])

show_all(app)
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (HELP, {"flwr", "onnx", "opacus", "ray", *HEAVY}),
        ("import sys, wecfl.methods", HEAVY - {"numpy"}),
        (
            "import sys, wecfl.flower.client",
            {"altair", "onnx", "pandas", "ray", "scipy", "sklearn"},
        ),
    ],
    ids=["the help of all commands", "the methods", "a client"],
)
def test_nothing_is_loaded_in_vain(code: str, heavy: set[str]) -> None:
    """A client is a new process for each message: what it loads, it loads in every round."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(*sorted({heavy} & sys.modules.keys()))"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["run", "--clusters", "0"], set()),
        (["run", "--cluters", "3"], {"numpy"}),  # the methods are asked which options they have
        (["run", "--method", "wcfl"], {"numpy"}),
        (["compare"], set()),
        (["rum"], set()),
    ],
)
def test_a_mistake_is_told_at_once(words: list[str], allowed: set[str]) -> None:
    code = "import atexit, sys; from wecfl_main import main; atexit.register(lambda: print("
    code += f"*sorted({HEAVY - allowed} & sys.modules.keys()))); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "\n"), done.stderr
