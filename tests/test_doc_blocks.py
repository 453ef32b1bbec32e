"""Every block of Python in README.md and in the pages of docs/ runs as it stands.

The blocks of a page are run in order, in one namespace and in an empty folder. What a page takes
for granted is in `reader`; a small stand-in for Fashion-MNIST is where `WECFL_DATA` says, and a run
ends after its first round. Examples after `>>>` are run by `test_docs.py`.
"""

import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file
from torch import nn

import wecfl
from wecfl.models import make
from wecfl.models.rows import row_of

ROOT = Path(__file__).parents[1]
ROUNDS = 1
CLIENTS = 20

CAN_NOT_RUN = {
    "docs/evidence/fashion-3-2-class.md": {
        2: "2,000 pictures of each class and 45 classifiers: minutes"
    },
}
"""By page, which of its blocks (counted from 1), and why. Keep it short."""


class Block(NamedTuple):
    number: int
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks marked as Python, with the line of the page that each begins after."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M)
    return [
        Block(number, text.count("\n", 0, each.start(1)), each[1])
        for number, each in enumerate(found, 1)
    ]


PAGES = {
    str(page.relative_to(ROOT)): blocks(page)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


class Net(nn.Sequential):
    """A module of the reader's own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def reader() -> dict[str, Any]:
    """What somebody who reads a page has: data of clients, a model, a method, a Flower app."""
    rng = np.random.default_rng(0)
    ys = [np.arange(12 + i) % 3 for i in range(CLIENTS)]
    xs = [np.eye(3, 6, dtype=np.float32)[y] + rng.normal(size=(len(y), 6)) / 4 for y in ys]
    return {
        "__name__": "page",
        "wecfl": wecfl,
        "xs": xs,
        "ys": ys,
        "fed": wecfl.Federation.from_arrays(xs, ys),
        "Net": Net,
        "method": wecfl.methods.wecfl(k=3),
        "load_data": lambda config: (xs[0], ys[0]),
        "make_model": Net,
        "CLASSES": 3,
    }


def fashion(folder: Path) -> None:
    """Fashion-MNIST in small: noise in its own format, 140 pictures of each class."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, n in (("train", 1000), ("t10k", 400)):
        images, labels = rng.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n) % 10
        header = struct.pack(">4I", 0x0803, n, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">2I", 0x0801, n)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            header + labels.astype(np.uint8).tobytes()
        )


def left_by_commands(block: str, has: dict[str, Any]) -> None:
    """What a page's commands have left, where the block reads it: a run folder, stored models."""
    if 'read_json("runs/…/metrics.jsonl"' in block:
        wecfl.run(has["fed"], has["method"], model="logistic", folder="runs/…")
    if 'load_file(f"docs/results/models/' in block:
        stored = re.findall(r'name = "(.+)"', block)[0]
        row = row_of(make("cnn-fashion", shape=(1, 28, 28), classes=10, seed=0))
        Path("docs/results/models").mkdir(parents=True)
        save_file({"models": row[None]}, f"docs/results/models/{stored}")


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found])
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fashion(tmp_path / "data")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WECFL_DATA", str(tmp_path / "data"))
    whole = wecfl.run

    def short(*of: Any, rounds: Any = ROUNDS, **how: Any) -> Any:
        few = min(rounds, ROUNDS) if isinstance(rounds, int) else rounds  # that end by a rule
        return whole(*of, rounds=few, **how)

    monkeypatch.setattr(wecfl, "run", short)
    has = reader()
    for number, line, text in PAGES[page]:
        # As many lines before it as in the page, so that an error tells the right one.
        code = compile("\n" * line + text, str(ROOT / page), "exec")
        if number not in CAN_NOT_RUN.get(page, {}):
            left_by_commands(text, has)
            exec(code, has)


def test_few_blocks_are_left_out_and_all_of_them_exist() -> None:
    left_out = [(page, number) for page, numbers in CAN_NOT_RUN.items() for number in numbers]
    assert len(left_out) <= 3
    for page, number in left_out:
        assert number in [block.number for block in PAGES[page]], f"{page} has no block {number}"


def test_blocks_are_found() -> None:
    """An indented or oddly marked block would be left out in silence."""
    for page, found in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert len(found) == len(re.findall(r"```\s*(?:python|py)\b", text)), page
