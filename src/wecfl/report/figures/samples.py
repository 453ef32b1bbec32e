"""The picture of a world: samples as the clients of each group see and name them."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode

import altair as alt
import numpy as np
from numpy.typing import NDArray

from wecfl.core.types import F32, Int
from wecfl.data.federation import Federation

__all__ = ["sample_panel"]

MAX_LANES = 10
"""So many groups or clients are shown."""
MAX_POINTS = 150
"""So many samples of a table are shown for each group or client."""
CELL_PIXELS = 28
Lane = tuple[str, Int]
"""The name of a group or client, and the rows of its training samples."""


def sample_panel(federation: Federation) -> alt.Chart | alt.FacetChart:
    """Samples of each group, or of the first clients if there are no groups.

    Of images, the first one with each label is shown, so a picture in the wrong column has been
    renamed. Of other samples the first two features are shown, coloured by label; or the
    first feature and the target, if targets are numbers.

    >>> xs, ys = [np.zeros((4, 2)), np.ones((4, 2))], [[0, 1, 0, 1]] * 2
    >>> sample_panel(Federation.from_arrays(xs, ys)).to_dict()["title"]
    'samples of the first clients'
    """
    groups = federation.groups
    if groups is None:
        who = "client"
        lanes = [(str(i), rows) for i, rows in enumerate(federation.train[:MAX_LANES])]
    else:
        who = "group"
        lanes = [
            (str(g), np.concatenate([federation.train[i] for i in np.flatnonzero(groups == g)]))
            for g in np.unique(groups)[:MAX_LANES]
        ]
    title = "samples of the groups" if groups is not None else "samples of the first clients"
    if len(federation.shape) == 3 and federation.shape[0] in (1, 3):
        return _images(federation, lanes, who, title)
    return _points(federation, lanes, who, title)


def _images(federation: Federation, lanes: list[Lane], who: str, title: str) -> alt.Chart:
    cells = []
    for lane, rows in lanes:
        labels, first = np.unique(federation.y[rows], return_index=True)
        for label, row in zip(labels[:MAX_LANES].tolist(), rows[first[:MAX_LANES]], strict=True):
            cells.append({who: lane, "label": label, "url": _data_url(federation.x[row])})
    order = [lane for lane, _ in lanes]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=cells), title=title)
        .mark_image(width=CELL_PIXELS, height=CELL_PIXELS)
        .encode(
            x=alt.X("label:O", title="label", axis=alt.Axis(labelAngle=0)),
            y=alt.Y(f"{who}:O", title=who, sort=order),
            url="url:N",
        )
        .properties(width=alt.Step(CELL_PIXELS + 2), height=alt.Step(CELL_PIXELS + 2))
    )
    return chart


def _points(federation: Federation, lanes: list[Lane], who: str, title: str) -> alt.FacetChart:
    held = federation.held is not None
    points = []
    for lane, rows in lanes:
        for row in rows[:MAX_POINTS]:
            flat, target = federation.x[row].ravel(), federation.y[row]
            across = float(flat[0])
            up = float(flat[min(1, len(flat) - 1)] if held else np.ravel(target)[0])
            points.append({who: lane, "across": across, "up": up, "label": str(target)})
    chart = (
        alt.Chart(alt.InlineData(values=points))
        .mark_circle(size=12, opacity=0.6)
        .encode(
            x=alt.X("across:Q", title="feature 0"),
            y=alt.Y("up:Q", title="feature 1" if held else "target"),
            **({"color": alt.Color("label:N")} if held else {}),
        )
        .properties(width=110, height=110)
    )
    order = [lane for lane, _ in lanes]
    faceted: alt.FacetChart = chart.facet(
        alt.Facet(f"{who}:O", sort=order, title=who), columns=4, title=title
    )
    return faceted


def _data_url(image: F32) -> str:
    """An image (1 or 3, H, W) with pixels in [−1, 1] as a PNG in a URL; others are cut off."""
    pixels = np.clip(np.round((image + 1) * 127.5), 0, 255).astype(np.uint8)
    return "data:image/png;base64," + b64encode(_png(pixels.transpose(1, 2, 0))).decode()


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG of grey or coloured pixels (H, W, 1 or 3)."""
    height, width, colours = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if colours == 1 else 2, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
