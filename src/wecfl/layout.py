"""The layout of a model as one row: which columns hold which parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import numpy as np
from numpy.typing import NDArray

from wecfl.errors import ModelError

__all__ = ["Entry", "Layout"]

TAGS = ("head", "classifier", "linear", "statistics", "frozen")
UNTRAINED_TAGS = {"statistics", "frozen"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One named tensor of a model, and its columns `start:stop` in the row."""

    name: str
    shape: tuple[int, ...]
    start: int
    tags: frozenset[str] = frozenset()

    @property
    def stop(self) -> int:
        """The column after the last one."""
        return self.start + prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The map between a model's tensors and the P columns of its row ω.

    Trainable parameters come first, in the module's order. Columns without a gradient come last. So
    local updates change only the first `trainable` columns. Tags mark the representations of the
    paper, and the columns that are averaged and distributed, but never clustered or trained:

    - ``head``: the weight matrix of the last linear layer (the authors' code);
    - ``classifier``: weights and bias of the last linear layer; ``~classifier`` is the body;
    - ``linear``: weights and biases of all fully connected layers (the paper's text);
    - ``statistics``: running mean and variance of BatchNorm;
    - ``frozen``: parameters that do not require a gradient.

    >>> layout = Layout.of(
    ...     [("conv.weight", (2, 3), []), ("bn.running_mean", (2,), ["statistics"]),
    ...      ("fc.weight", (2, 2), ["linear", "head"]), ("fc.bias", (2,), ["linear"])])
    >>> layout.width, layout.trainable
    (14, 12)
    >>> layout.columns("head"), layout.columns("linear"), layout.columns("parameters")
    (slice(6, 10, None), slice(6, 12, None), slice(0, 12, None))
    """

    entries: tuple[Entry, ...]

    @property
    def trained_stops(self) -> list[int]:
        """The column after the last one of each tensor that is trained.

        >>> Layout.of([("w", (2, 3), []), ("b", (2,), [])]).trained_stops
        [6, 8]
        """
        trainable = self.trainable
        return [entry.stop for entry in self.entries if entry.stop <= trainable]

    @property
    def head(self) -> tuple[int, int]:
        """(C, D), the outputs of the last linear layer, and its inputs: the features of a sample.

        Zeros if the model does not end in a matrix.

        >>> Layout.of([("w", (2, 3), ["head"]), ("b", (2,), [])]).head
        (2, 3)
        """
        match [entry.shape for entry in self.entries if "head" in entry.tags]:
            case [*_, (outputs, inputs)]:
                return outputs, inputs
        return 0, 0

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, Sequence[int], Sequence[str]]]) -> Layout:
        """Lay (name, shape, tags) triples side by side, statistics last."""
        entries: list[Entry] = []
        start = 0
        for name, shape, tags in sorted(
            tensors, key=lambda tensor: bool(UNTRAINED_TAGS & {*tensor[2]})
        ):
            entry = Entry(name, tuple(shape), start, frozenset(tags))
            entries.append(entry)
            start = entry.stop
        return cls(tuple(entries))

    @property
    def width(self) -> int:
        """P, the length of a row."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def trainable(self) -> int:
        """The number of leading columns that are parameters."""
        return sum(prod(e.shape) for e in self.entries if not UNTRAINED_TAGS & e.tags)

    def columns(self, which: str) -> slice | NDArray[np.int64]:
        """The columns of a selection: a slice if they are adjacent, otherwise an array of indices.

        A selection is ``all``, ``none``, ``parameters`` (the trainable ones), a tag, or a pattern
        for the names of tensors (``conv*``). A leading ``~`` means all other columns.

        >>> layout = Layout.of([("a", (2,), []), ("b", (3,), []), ("c", (1,), [])])
        >>> layout.columns("b"), layout.columns("~b")
        (slice(2, 5, None), array([0, 1, 5]))
        """
        if which == "none":
            return slice(0, 0)
        name = which.removeprefix("~")
        chosen = np.zeros(self.width, dtype=bool)
        for entry in self.entries:
            chosen[entry.start : entry.stop] = (
                name == "all"
                or (name == "parameters" and not UNTRAINED_TAGS & entry.tags)
                or (name in entry.tags if name in TAGS else fnmatchcase(entry.name, name))
            )
        named = chosen.any()
        found = np.flatnonzero(~chosen if which.startswith("~") else chosen)
        if not named or len(found) == 0:
            raise ModelError(
                f"the selection '{which}' names no column of the model, whose tensors are "
                f"{', '.join(e.name for e in self.entries) or 'none'}: choose one of "
                f"parameters, {', '.join(TAGS)}, or a pattern for the names of these tensors"
            )
        if found[-1] - found[0] + 1 == len(found):
            return slice(int(found[0]), int(found[-1]) + 1)
        return found

    def tensors(self, row: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The named tensors of one row, as views.

        >>> Layout.of([("w", (2, 2), [])]).tensors(np.arange(4, dtype=np.float32))["w"].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        """
        return {e.name: row[e.start : e.stop].reshape(e.shape) for e in self.entries}
