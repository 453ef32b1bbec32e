"""All benchmarks, one table: each figure with its goal. Every one can also be run alone."""

from __future__ import annotations

import argparse

from rich.console import Console

import architectures
import checkpoints
import cluster
import fleet
import growth
import local_update
import memory
import peers
import ready
import shortcuts
import whole_round
from common import show

QUESTIONS = (
    local_update,
    architectures,
    whole_round,
    checkpoints,
    memory,
    growth,
    fleet,
    cluster,
    shortcuts,
    peers,
    ready,
)


def main() -> None:
    """Ask every question and print the answers together."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--data-dir", default="", help="CIFAR-10 and Fashion-MNIST, else random")
    data_dir = flags.parse_args().data_dir
    terminal, lines = Console(stderr=True), []
    for question in QUESTIONS:
        terminal.print(f"{question.__name__}: {(question.__doc__ or '').splitlines()[0]}")
        with_data = {"data_dir": data_dir} if question in (whole_round, memory, cluster) else {}
        lines += question.lines(**with_data)
    show(lines)


if __name__ == "__main__":
    main()
