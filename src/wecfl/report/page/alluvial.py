"""The alluvial picture: clusters as blocks in columns, clients as ribbons between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from wecfl.core.types import Int

__all__ = ["Alluvial", "ClusterBlock", "Ribbon", "alluvial", "telling_rounds"]

MIN_COLUMN_DISTANCE = 100.0
COLUMN_HEIGHT = 340.0
BLOCK_WIDTH = 16.0
BLOCK_GAP = 5.0
HEAD_HEIGHT = 26.0


@dataclass(frozen=True, slots=True)
class ClusterBlock:
    """The clients of one cluster in one column."""

    x: float
    y: float
    height: float
    label: int
    title: str
    hidden: bool
    """Whether it is a hidden group instead of a cluster."""


@dataclass(frozen=True, slots=True)
class Ribbon:
    """The clients that go from one block to another."""

    path: str
    label: int
    """The cluster that they go to."""
    moved: bool
    """Whether they change their cluster (coming from a hidden group does not count)."""
    title: str


@dataclass(frozen=True, slots=True)
class Alluvial:
    """The picture: the heads of its columns (x, text), blocks and ribbons."""

    heads: list[tuple[float, str]]
    blocks: list[ClusterBlock]
    ribbons: list[Ribbon]
    width: float
    height: float = COLUMN_HEIGHT + HEAD_HEIGHT
    block: float = BLOCK_WIDTH


def telling_rounds(labels: Int, max_columns: int = 8) -> list[int]:
    """The rounds (from 0) to show: the first, the last, and those in which most clients moved.

    >>> telling_rounds(np.array([[0, 0], [0, 1], [0, 1], [0, 1], [1, 1], [1, 1]]))
    [0, 1, 4, 5]
    """
    last = len(labels) - 1
    moves = (labels[1:] != labels[:-1]).sum(axis=1)
    most_moved = np.argsort(-moves, kind="stable")[: max_columns - 2]
    return sorted({0, last, *(int(t) + 1 for t in most_moved if moves[t])})


def alluvial(labels: Int, groups: Int | None, names: Sequence[str]) -> Alluvial:
    """The picture of the assignments (rounds, m): one column each, with `names` above them.

    If the hidden groups are known, they are the first column.

    >>> picture = alluvial(np.array([[0, 0, 1], [0, 1, 1]]), None, ["1", "2"])
    >>> [(ribbon.title, ribbon.moved) for ribbon in picture.ribbons]
    [('1 client stays in cluster 0', False), ('1 client: cluster 0 to 1', True),
     ('1 client stays in cluster 1', False)]
    """
    order = _order(labels, groups)
    columns = [("cluster", f"round {n}", own, order) for n, own in zip(names, labels, strict=True)]
    if groups is not None:
        columns.insert(0, ("group", "hidden group", groups, np.unique(groups).tolist()))
    step = max(MIN_COLUMN_DISTANCE, 320 / max(len(columns) - 1, 1))
    most_blocks = max(len(np.unique(own)) for _, _, own, _ in columns)
    scale = (COLUMN_HEIGHT - BLOCK_GAP * (most_blocks - 1)) / labels.shape[1]
    blocks: list[ClusterBlock] = []
    ribbons: list[Ribbon] = []
    tops: list[dict[int, float]] = []
    for j, (kind, head, own, ranks) in enumerate(columns):
        y, top = HEAD_HEIGHT, {}
        for label in ranks:
            if count := int((own == label).sum()):
                top[label] = y
                title = f"{kind} {label}, {head}: {_clients(count)}"
                blocks.append(
                    ClusterBlock(j * step, y, count * scale, label, title, kind == "group")
                )
                y += count * scale + BLOCK_GAP
        tops.append(top)
    for j, ((kind, _, left, ranks), (_, _, right, _)) in enumerate(pairwise(columns)):
        leave, arrive = dict(tops[j]), dict(tops[j + 1])
        for a, b in product(ranks, order):
            if count := int(((left == a) & (right == b)).sum()):
                height, edges = count * scale, (j * step + BLOCK_WIDTH, (j + 1) * step)
                path = _path(edges, leave[a], arrive[b], height)
                leave[a] += height
                arrive[b] += height
                stays = kind == "cluster" and a == b
                words = f"{_clients(count)}: {kind} {a} to {'cluster ' * (kind == 'group')}{b}"
                if stays:
                    words = f"{_clients(count)} stay{'s' * (count == 1)} in cluster {a}"
                ribbons.append(Ribbon(path, b, kind == "cluster" and not stays, words))
    heads = [(j * step + BLOCK_WIDTH / 2, head) for j, (_, head, _, _) in enumerate(columns)]
    return Alluvial(heads, blocks, ribbons, step * (len(columns) - 1) + BLOCK_WIDTH)


def _order(labels: Int, groups: Int | None) -> list[int]:
    """Clusters in the order of the group most of their clients come from: few ribbons cross."""
    found = range(int(labels.max()) + 1)
    if groups is None:
        return list(found)
    held = {k: groups[labels[-1] == k] for k in found}
    main = {k: _commonest(own) if len(own) else len(groups) for k, own in held.items()}
    return sorted(found, key=lambda k: (main[k], k))


def _commonest(groups: Int) -> int:
    found, counts = np.unique(groups, return_counts=True)
    return int(found[counts.argmax()])


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count != 1)}"


def _path(edges: tuple[float, float], y: float, to_y: float, height: float) -> str:
    """The outline of a ribbon, from the left edge at y to the right edge at to_y and back."""
    x, to_x = edges
    middle = (x + to_x) / 2
    return (
        f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        f"v{height:.1f}C{middle:.1f} {to_y + height:.1f} {middle:.1f} {y + height:.1f} "
        f"{x:.1f} {y + height:.1f}z"
    )
