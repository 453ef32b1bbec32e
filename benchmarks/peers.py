"""The same work on other libraries: samples of local training per CPU-second, native ÷ peer.

Every peer trains the same models on the same clients (320 random samples each: 10 batches of 32,
SGD with momentum 0.9) through the class or function of its own that runs local training; the table
and `peer_training.py` name it. One thread per process; CPU time is that of the process and all its
descendants, without start-up. Each peer has a process of its own, in which its turns and those of
the native engine alternate. The plain loop, which is no library, is measured in the same way.

`make peers` installs them (benchmarks/requirements.txt) into .venv-peers, which is used if it is
there; a peer that is not installed is said to be so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common import Line, main, ratios
from peer_training import BATCH, PEERS, STEPS
from peer_workloads import MODELS

GOALS = {"cnn-cifar": 4.0, "cnn-fashion": 2.7, "resnet-8": 2.5, "gru": None}
"""Against the fastest peer."""
FLOWER_GOAL = {"cnn-cifar": 12.0}
HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"


def lines(turns: int = 5, clients: int = 8, model: str = "", peers: str = "") -> list[Line]:
    """A line per peer and model; the goal stands beside the fastest peer and beside Flower.

    One `model`, or some `peers` with commas between them, if they are named.
    """
    models = [model] if model else list(MODELS)
    asked = [name for name in PEERS if name in (peers.split(",") if peers else PEERS)]
    return [line for each in models for line in _lines(each, turns, clients, asked)]


def _lines(model: str, turns: int, clients: int, peers: Sequence[str]) -> list[Line]:
    found: dict[str, dict[str, Any]] = {
        name: _in_its_environment(name, model, turns, clients) for name in peers
    }
    installed = {name: result for name, result in found.items() if "native" in result}
    speedup = {name: ratios(each["peer"], each["native"]) for name, each in installed.items()}
    fastest = min(speedup, key=lambda name: median(speedup[name]), default=None)
    samples, result = clients * STEPS * BATCH, []
    for name, each in found.items():
        if name not in installed:
            result.append(Line(f"per CPU-second ÷ {name}", MODELS[model], [], detail=each["why"]))
            continue
        ours, theirs = (samples / median(each[side]) for side in ("native", "peer"))
        goal = GOALS[model] if name == fastest else None
        if name == "Flower":
            goal = FLOWER_GOAL.get(model, goal)
        result.append(
            Line(
                f"per CPU-second ÷ {name}" + " (the fastest)" * (name == fastest),
                MODELS[model],
                speedup[name],
                goal,
                detail=f"{each['version']}, {PEERS[name][1]}: {ours:,.0f} against {theirs:,.0f}",
            )
        )
    return result


def _in_its_environment(name: str, model: str, turns: int, clients: int) -> dict[str, Any]:
    """CPU-seconds of each turn of both sides, measured by `peer_training.py`; or why not."""
    python = PEERS_PYTHON if PEERS_PYTHON.exists() else Path(sys.executable)
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(HERE),
    }
    command = [python, HERE / "peer_training.py", name, model, str(turns), str(clients)]
    done = subprocess.run(
        command, env=os.environ | quiet, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"why": f"failed: {last[:200]}"}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


if __name__ == "__main__":
    main(lines)
