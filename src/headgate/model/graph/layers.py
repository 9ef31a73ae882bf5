"""In which column each node of a graph stands: right of all it is made of; pure.

A layer with more boxes than fit beside each other is folded: it takes several columns, filled row
by row, so that what stood high or low in the layer still does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from statistics import fmean

Edges = Sequence[tuple[int, int]]
_SWEEPS = 4


def find_layers(count: int, edges: Edges) -> list[int]:
    """The length of the longest way to each node; an edge that would close a circle is ignored."""
    below: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for source, target in edges:
        if source != target:
            below[source].append(target)
            waits[target] += 1
    layer = [0] * count
    ready = [node for node in range(count) if waits[node] == 0]
    while ready:
        node = ready.pop()
        for target in below[node]:
            layer[target] = max(layer[target], layer[node] + 1)
            waits[target] -= 1
            if waits[target] == 0:
                ready.append(target)
    return layer


def fold(layer_of: Sequence[int], edges: Edges, most: int) -> list[int]:
    """The column of each node, where none has more than so many."""
    sizes = Counter(layer_of)
    if max(sizes.values(), default=0) <= most:
        return list(layer_of)
    order = _ranks(layer_of, edges)
    widths = [ceil(sizes[layer] / most) for layer in range(max(sizes) + 1)]
    starts = [sum(widths[:layer]) for layer in range(len(widths))]
    return [
        starts[layer] + rank % widths[layer] for layer, rank in zip(layer_of, order, strict=True)
    ]


def _ranks(layer_of: Sequence[int], edges: Edges) -> list[int]:
    """The place of each node within its layer, near to that of its neighbours in the others."""
    rows: list[list[int]] = [[] for _ in range(max(layer_of) + 1)]
    for node, layer in enumerate(layer_of):
        rows[layer].append(node)
    left: list[list[int]] = [[] for _ in layer_of]
    right: list[list[int]] = [[] for _ in layer_of]
    for source, target in edges:
        right[source].append(target)
        left[target].append(source)
    # From 0 to 1, so that places in long layers and in short ones can be compared.
    height = [0.0] * len(layer_of)
    for row in rows:
        _spread(row, height)
    for sweep in range(_SWEEPS):
        near, ordered = (left, rows) if sweep % 2 == 0 else (right, rows[::-1])
        for row in ordered:
            wanted = {n: fmean(height[o] for o in near[n]) if near[n] else height[n] for n in row}
            row.sort(key=wanted.__getitem__)
            _spread(row, height)
    rank = [0] * len(layer_of)
    for row in rows:
        for place, node in enumerate(row):
            rank[node] = place
    return rank


def _spread(row: Sequence[int], height: list[float]) -> None:
    for place, node in enumerate(row):
        height[node] = (place + 0.5) / len(row)
