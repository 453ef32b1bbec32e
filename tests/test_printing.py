"""Control characters in what others wrote are shown, wherever it is shown."""

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from torch import Tensor, nn

from wecfl import Federation, Plan, methods, run
from wecfl.errors import EngineError, WecflError
from wecfl.printing import log, printable

if TYPE_CHECKING:
    from helpers import Wecfl

HOSTILE = [
    "\x1b]0;mine\x07",
    "\x1b[2J",
    "a\rb",
    "\x9b31m",
    "\u202egpj",
    "\u2066x",
    "\x7f",
    "[red]z",
]
"""Sets the title, clears the screen, goes back to the start of the line, colors by one character,
turns letters around, isolates, deletes; and markup of rich."""
NAME = "".join(HOSTILE)


def tame(text: str) -> None:
    """Nothing in the text makes a terminal do something."""
    assert {char for char in text if not char.isprintable()} <= {"\n"}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a name that a client could give itself, and so the names of its files."""
    folder = tmp_path_factory.mktemp("data") / NAME
    folder.mkdir()
    draws = np.random.default_rng(0)
    for name in [*HOSTILE, "plain"]:
        x = draws.normal(size=(12, 4)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(12) % 2)
    return folder


def test_commands_show_names_and_do_not_send_them(
    clients: Path, wecfl: "Wecfl", tmp_path: Path
) -> None:
    """In lines, errors, tables, JSON and the page."""
    flags = ["--dataset", clients, "--rounds", "1", "--steps", "1", "--clusters", "2"]
    done = wecfl("run", *flags, "--model", "logistic", "--workers", "1", "--out", NAME)
    assert done.code == 0, done.err
    newcomer = clients / f"{HOSTILE[0]}.npz"
    for code, outcome in (
        (0, done),
        (0, wecfl("compare", NAME)),
        (0, wecfl("assign", NAME, newcomer)),
        (0, wecfl("assign", NAME, newcomer, "--json")),
        (0, wecfl("report", NAME)),
        (0, wecfl("export", NAME, "--cluster", "0", "--format", "safetensors")),
        (2, wecfl("resume", NAME)),
        (2, wecfl("run", "--dataset", NAME * 2)),
        (2, wecfl("run", "--method", NAME)),
        (0, wecfl("check", NAME)),
    ):
        assert outcome.code == code, outcome
        tame(outcome.out)
        tame(outcome.err)
        assert outcome.err.count("\n") <= 1
    assert "\\x1b[2J" in wecfl("resume", NAME).err
    page = (tmp_path / NAME / "page.html").read_text()
    scripts = "".join(re.findall("<script.*?</script>", page, re.DOTALL)).replace("\\\\", "")
    for char in "\x1b\x07\x9b\u202e\u2066\x7f":
        assert char not in page
        assert f"\\u{ord(char):04x}" not in scripts  # as JSON would say it
    assert "\\u202egpj" in page


class Failing(nn.Module):
    """A model that fails with a text of its own in the training, but not in the first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """What it can do in evaluation only."""
        if self.training:
            raise ValueError(NAME)
        return self.last(x)  # type: ignore[no-any-return]


def test_what_a_client_says_when_it_fails_is_shown(
    fed: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineError, match="x1b") as error:
        run(fed, methods.fedavg, model=Failing(), rounds=1, plan=Plan(steps=1))
    tame(str(error.value))
    assert "running on the torch engine" in caplog.text
    tame(caplog.text)


def test_log_lines_and_errors_are_one_line_and_tame(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log.info("client %s says %s", NAME, "two\nlines")
    [line] = caplog.messages
    assert line == f"client {printable(NAME)} says two lines"
    tame(line)
    tame(str(WecflError(NAME)))
    assert printable("ω ≤ 3 · 😀 é") == "ω ≤ 3 · 😀 é"
