"""What two shortcuts of our own pay against the plain way, in seconds of one processor.

The order of columns (`wecfl/bilevel/aggregation/column_order.py`, for the median and the trimmed
mean): numbers of members in unused bits and a plain sort, against `argsort`. Reused memory
(`wecfl/memory.py`): a matrix of m × P is made, filled and dropped, against the same with
`numpy.empty`. For 200 models of 59,134 columns, and for `--clients` models of 15,690.
"""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np

from common import Line, main, measure, ratios
from wecfl import memory
from wecfl.bilevel.aggregation.column_order import in_order
from wecfl.core.types import F32, F64


def lines(turns: int = 5, clients: int = 2_000) -> list[Line]:
    """Both shortcuts for both sizes."""
    return [
        line
        for shape in ((200, 59_134), (clients, 15_690))
        for line in (_order(turns, *shape), _memory(turns, *shape))
    ]


def _order(turns: int, clients: int, width: int) -> Line:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((clients, width), np.float32)
    weight = rng.uniform(1, 2, clients)
    plain, ours = measure(
        turns,
        lambda: _by_argsort(rows, weight),
        lambda: [None for _ in in_order(rows, weight)],
        clock=process_time,
    )
    return _line("order of columns, argsort ÷ ours", clients, width, plain, ours)


def _by_argsort(rows: F32, weight: F64) -> None:
    """The plain way, in the same blocks."""
    block = max(2**16 // len(rows), 1)
    for start in range(0, rows.shape[1], block):
        values = np.ascontiguousarray(rows[:, start : start + block].T)
        order = values.argsort(axis=1)
        np.take_along_axis(values, order, axis=1).astype(np.float64)
        weight[order.T].cumsum(axis=0)


def _memory(turns: int, clients: int, width: int) -> Line:
    row = np.zeros(width, np.float32)

    def fresh() -> None:
        np.empty((clients, width), np.float32)[:] = row

    def reused() -> None:
        memory.empty((clients, width))[:] = row

    plain, ours = measure(turns, fresh, reused, clock=process_time)
    return _line("a new matrix, fresh memory ÷ reused", clients, width, plain, ours)


def _line(work: str, clients: int, width: int, plain: list[float], ours: list[float]) -> Line:
    seconds = f"{median(plain):.3f} s against {median(ours):.3f} s"
    return Line(work, f"{clients:,} × {width:,}", ratios(plain, ours), least=1, detail=seconds)


if __name__ == "__main__":
    main(lines)
