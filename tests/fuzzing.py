"""How many inputs the fuzz tests try, and how any command may end, whatever its input.

`WECFL_FUZZ=40` (`make fuzz`) tries forty times as many inputs, different ones in every run.
Without it the inputs are few and always the same, and suites over all methods take turns.
"""

import hashlib
import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from helpers import Outcome

FACTOR = int(os.environ.get("WECFL_FUZZ", "0"))

T = TypeVar("T")

chances = st.randoms(use_true_random=False)
"""The randomness of the damage; Hypothesis looks for the smallest input that fails."""


def tries(count: int) -> settings:
    """Settings for `count` inputs, or for a multiple of them with `WECFL_FUZZ`."""
    return settings(
        max_examples=count * max(FACTOR, 1),
        derandomize=not FACTOR,
        suppress_health_check=list(HealthCheck),
    )


def in_turns(cases: Iterable[T], turn: int, of: int = 3, always: Container[T] = ()) -> list[T]:
    """Every third of the cases, from the one numbered `turn` on, and those of `always`.

    Suites over all methods have different turns, so that each method is in several of them, and
    `always` names a method of each kind. `make fuzz` has all cases.
    """
    found = list(cases)
    if FACTOR:
        return found
    return [case for place, case in enumerate(found) if place % of == turn or case in always]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder and its checksum."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def judge(outcome: Outcome) -> bool:
    """Whether it worked; if not, one clear line must say why."""
    code, out, err = outcome
    if code == 0:
        assert err == "", err
        return True
    assert (code, err.count("\n")) == (2, 1), (code, err)
    assert err.startswith("wecfl: ") and err.endswith("\n")
    assert len(err) > len("wecfl: ..\n") and "Traceback" not in err + out
    return False
