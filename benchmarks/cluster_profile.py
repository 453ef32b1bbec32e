"""Which processes of a Ray cluster use the processor: in a round, in a round on threads, and idle.

The round is that of `cluster.py`, with the same bits. A round on threads beside it tells what the
same work needs, and what Ray's processes use in the meantime. Then all of them wait.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from cluster import SETTING, engines, rounds_of
from common import Line, descendants, main, paper

KINDS = {
    "ray::Actor": "actors", "raylet/raylet": "raylets", "gcs_server": "control store",
}  # fmt: skip
"""The kinds of processes by a part of their command line."""
IDLE_SECONDS = 5.0
"""The time in which they wait."""


def lines(turns: int = 5, data_dir: str = "", nodes: int = 4) -> list[Line]:
    """Seconds of the processor by kind of process."""
    config, fed = paper(SETTING, data_dir)
    with engines(nodes, config, fed) as (here, there):
        threads, sharded = (rounds_of(engine, config, fed) for engine in (here, there))
        used: dict[str, list[Counter[str]]] = {"Ray": [], "threads": []}
        for turn in range(turns + 1):
            taken = _used(lambda: next(sharded)), _used(lambda: next(threads))
            if turn:
                for where, seconds in zip(used.values(), taken, strict=True):
                    where.append(seconds)
        began = perf_counter()
        idle = _used(lambda: sleep(IDLE_SECONDS))
        passed = perf_counter() - began
    told = [
        Line(
            f"{kind} in a round on {where}",
            SETTING.title,
            [each[kind] for each in turns_of],
            unit="s",
        )
        for where, turns_of in used.items()
        for kind in sorted(set().union(*turns_of))
    ]
    for kind, seconds in idle.items():
        told.append(Line(f"{kind}, idle", f"{nodes} nodes", [seconds / passed], unit="of a core"))
    own = [
        sum(ray.values()) - median(sum(t.values()) for t in used["threads"]) for ray in used["Ray"]
    ]
    return [*told, Line("round on Ray − round on threads", SETTING.title, own, unit="s")]


def _used(work: Callable[[], object]) -> Counter[str]:
    """What each kind of process uses while this work is done."""
    before = _clocks()
    work()
    after = _clocks()
    used: Counter[str] = Counter()
    for kind, seconds in after.items():
        used[kind] = seconds - before[kind]
    return used


def _clocks() -> Counter[str]:
    """Seconds of the processor that each kind of process has used so far."""
    clocks: Counter[str] = Counter()
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            kind = next((kind for part, kind in KINDS.items() if part in command), "others")
            kind = "driver" if pid == os.getpid() else kind
            clocks[kind] += sum(map(int, after[11:13])) / os.sysconf("SC_CLK_TCK")
    return clocks


if __name__ == "__main__":
    main(lines)
