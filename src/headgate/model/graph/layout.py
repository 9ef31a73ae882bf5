"""Where the nodes of a graph are drawn: in columns from left to right, edges between them; pure.

A long edge passes through every column by a point between the boxes, so none is drawn across one;
edges that leave the same box go together until they part.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean

from headgate.model.graph.layers import find_layers, fold

_SWEEPS = 4
# An edge over more columns goes straight: points for each would cost more than they make clear.
_LONGEST = 60
# As wide for its height as most windows are; so few boxes are never put beside each other.
_ASPECT = 1.7
_FEW_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """In the units of the drawing."""

    box_height: float = 58
    # Between boxes of one layer, and the room that an edge takes that passes by.
    gap: float = 18
    passing: float = 14
    # Between columns.
    channel: float = 70


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The left edge and the middle of each box, and the points of each edge."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    paths: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


def lay_out(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], sizes: Sizes | None = None
) -> Layout:
    """Places boxes of these widths; what a box is made of is always left of it."""
    sizes = sizes or Sizes()
    layer_of = find_layers(len(widths), edges)
    column_of = fold(layer_of, edges, _most_rows(widths, sizes))
    if column_of != layer_of:
        # Where so much passes by, edges keep less apart.
        sizes = replace(sizes, passing=sizes.passing / 3)
    grid = _Grid(column_of, edges, sizes)
    y = grid.settle()
    columns = _columns(widths, column_of, sizes)
    return Layout(
        x=tuple(columns[column][0] for column in column_of),
        y=tuple(y[: len(widths)]),
        paths=tuple(_path(points, columns, y, widths, grid.layer) for points in grid.passed),
        width=columns[-1][1] if columns else 0.0,
        height=max(y, default=0.0) + sizes.box_height / 2,
    )


def _most_rows(widths: Sequence[float], sizes: Sizes) -> int:
    """How many boxes may stand above each other, for a picture that fits into a window."""
    if not widths:
        return _FEW_ROWS
    across, down = fmean(widths) + sizes.channel, sizes.box_height + sizes.gap
    return max(_FEW_ROWS, round(sqrt(len(widths) * across / (down * _ASPECT))))


class _Grid:
    """Nodes and the points of passing edges, in layers, each layer in an order."""

    def __init__(
        self, layer_of: Sequence[int], edges: Sequence[tuple[int, int]], sizes: Sizes
    ) -> None:
        self._sizes = sizes
        self._boxes = len(layer_of)
        self.layer = list(layer_of)
        self._points: dict[tuple[int, int], int] = {}
        # Of each edge: what it goes through, both ends included.
        self.passed = [self._through(source, target) for source, target in edges]
        count = len(self.layer)
        self._left: list[list[int]] = [[] for _ in range(count)]
        self._right: list[list[int]] = [[] for _ in range(count)]
        steps = {step: None for points in self.passed for step in itertools.pairwise(points)}
        for source, target in steps:
            self._right[source].append(target)
            self._left[target].append(source)
        self._rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for point, layer in enumerate(self.layer):
            self._rows[layer].append(point)

    def _through(self, source: int, target: int) -> list[int]:
        points = [source]
        between = range(self.layer[source] + 1, self.layer[target])
        for layer in between if len(between) <= _LONGEST else ():
            if (source, layer) not in self._points:
                self._points[source, layer] = len(self.layer)
                self.layer.append(layer)
            points.append(self._points[source, layer])
        return [*points, target]

    def settle(self) -> list[float]:
        """The middle of each point: first an order with few crossings, then straight edges."""
        for sweep in range(_SWEEPS):
            self._order(self._left, self._rows)
            if sweep < _SWEEPS - 1:
                self._order(self._right, self._rows[::-1])
        y = [0.0] * len(self.layer)
        for row in self._rows:
            self._place(row, y, dict.fromkeys(row, 0.0))
        for _ in range(_SWEEPS):
            self._align(self._left, self._rows, y)
            self._align(self._right, self._rows[::-1], y)
        top = min(y, default=0.0) - self._sizes.box_height / 2
        return [value - top for value in y]

    def _order(self, neighbours: Sequence[Sequence[int]], rows: Sequence[list[int]]) -> None:
        at = [0.0] * len(self.layer)
        for row in rows:
            _number(row, at)
        for row in rows:
            wanted = {point: _mean(neighbours, point, at) for point in row}
            row.sort(key=wanted.__getitem__)
            _number(row, at)

    def _align(
        self, neighbours: Sequence[Sequence[int]], rows: Sequence[list[int]], y: list[float]
    ) -> None:
        for row in rows:
            self._place(row, y, {point: _mean(neighbours, point, y) for point in row})

    def _place(self, row: Sequence[int], y: list[float], wanted: Mapping[int, float]) -> None:
        """As near as possible to where each wants to be, in order and without overlap."""
        offsets = [0.0]
        for above, below in itertools.pairwise(row):
            offsets.append(offsets[-1] + self._half(above) + self._half(below))
        moved = [wanted[point] - offset for point, offset in zip(row, offsets, strict=True)]
        for point, offset, value in zip(row, offsets, _rising(moved), strict=True):
            y[point] = value + offset

    def _half(self, point: int) -> float:
        whole = self._sizes.box_height + self._sizes.gap
        return (whole if point < self._boxes else self._sizes.passing) / 2


def _rising(values: Sequence[float]) -> list[float]:
    """The sequence that never falls and lies nearest to these values, in least squares."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def _mean(neighbours: Sequence[Sequence[int]], point: int, at: Sequence[float]) -> float:
    """The middle of a point's neighbours; where it has none, it stays."""
    near = neighbours[point]
    return fmean([at[other] for other in near]) if near else at[point]


def _number(row: Sequence[int], at: list[float]) -> None:
    for place, point in enumerate(row):
        at[point] = float(place)


def _columns(
    widths: Sequence[float], layer_of: Sequence[int], sizes: Sizes
) -> list[tuple[float, float]]:
    """Where each layer begins and ends."""
    widest = [0.0] * (max(layer_of, default=-1) + 1)
    for node, layer in enumerate(layer_of):
        widest[layer] = max(widest[layer], widths[node])
    columns, at = [], 0.0
    for width in widest:
        columns.append((at, at + width))
        at += width + sizes.channel
    return columns


def _path(
    points: Sequence[int],
    columns: Sequence[tuple[float, float]],
    y: Sequence[float],
    widths: Sequence[float],
    layer_of: Sequence[int],
) -> tuple[tuple[float, float], ...]:
    """From the right side of the first box, straight through the layers between, to the last."""
    first, last = points[0], points[-1]
    path = [(columns[layer_of[first]][0] + widths[first], y[first])]
    for point in points[1:-1]:
        path += [(edge, y[point]) for edge in columns[layer_of[point]]]
    return (*path, (columns[layer_of[last]][0], y[last]))
