"""A graph as a tree for a terminal, Mermaid for a web page, DOT for Graphviz, and SVG; pure.

The drawing has columns from left to right: a node is right of all its inputs. A long edge passes
through each column by a point between the boxes, so that no edge crosses a box; edges that leave
the same box run together until they separate.
"""

import enum
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, sqrt
from statistics import fmean
from typing import Any

from headgate.model.graph import Graph, Mark, Node
from headgate.model.nouns import DatasetKind, JobState

Edges = Sequence[tuple[int, int]]
_SWEEPS = 4
# A longer edge, in columns, is drawn straight: points for each would cost more than they clarify.
_LONGEST = 60
# The aspect ratio of most windows; fewer rows than this are never folded.
_ASPECT = 1.7
_FEW_ROWS = 12


# Layers and columns. A layer with too many boxes is folded into several columns, filled row by row,
# so that boxes keep their relative height.


def find_layers(count: int, edges: Edges) -> list[int]:
    """Return the length of the longest path to each node; edges that close a cycle are ignored."""
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
    """Return the column of each node; a column has at most `most` nodes."""
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
    """Return the rank of each node in its layer, close to those of its neighbours."""
    rows = _rows(layer_of)
    left, right = _neighbours(len(layer_of), edges)
    # From 0 to 1, so that ranks in long and in short layers can be compared.
    height = [0.0] * len(layer_of)
    for row in rows:
        _spread(row, height)
    for sweep in range(_SWEEPS):
        near, ordered = (left, rows) if sweep % 2 == 0 else (right, rows[::-1])
        for row in ordered:
            wanted = {node: _mean(near, node, height) for node in row}
            row.sort(key=wanted.__getitem__)
            _spread(row, height)
    rank = [0] * len(layer_of)
    for row in rows:
        for place, node in enumerate(row):
            rank[node] = place
    return rank


def _rows(layer_of: Sequence[int]) -> list[list[int]]:
    """Return the nodes of each layer."""
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for node, layer in enumerate(layer_of):
        rows[layer].append(node)
    return rows


def _neighbours(
    count: int, edges: Iterable[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the sources and the targets of each node."""
    left: list[list[int]] = [[] for _ in range(count)]
    right: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        right[source].append(target)
        left[target].append(source)
    return left, right


def _spread(row: Sequence[int], height: list[float]) -> None:
    for place, node in enumerate(row):
        height[node] = (place + 0.5) / len(row)


# Coordinates.


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in the units of the drawing."""

    box_height: float = 58
    # Between boxes of one layer, and for an edge that passes between them.
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


def lay_out(widths: Sequence[float], edges: Edges, sizes: Sizes | None = None) -> Layout:
    """Return the positions of boxes of these widths; the inputs of a box are left of it."""
    sizes = sizes or Sizes()
    layer_of = find_layers(len(widths), edges)
    column_of = fold(layer_of, edges, _most_rows(widths, sizes))
    if column_of != layer_of:
        # With many passing edges, these keep a smaller distance.
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
    """Return the number of boxes per column for a drawing that fits into a window."""
    if not widths:
        return _FEW_ROWS
    across, down = fmean(widths) + sizes.channel, sizes.box_height + sizes.gap
    return max(_FEW_ROWS, round(sqrt(len(widths) * across / (down * _ASPECT))))


class _Grid:
    """Nodes and the points of passing edges, in layers, each layer in an order."""

    def __init__(self, layer_of: Sequence[int], edges: Edges, sizes: Sizes) -> None:
        self._sizes = sizes
        self._boxes = len(layer_of)
        self.layer = list(layer_of)
        self._points: dict[tuple[int, int], int] = {}
        # The points of each edge, both ends included.
        self.passed = [self._through(source, target) for source, target in edges]
        steps = {step: None for points in self.passed for step in itertools.pairwise(points)}
        self._left, self._right = _neighbours(len(self.layer), steps)
        self._rows = _rows(self.layer)

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
        """Return the middle of each point: first order for few crossings, then align edges."""
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
        """Place a row as close as possible to `wanted`, in order and without overlap."""
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
    """Return the non-decreasing sequence that is closest to these values, in least squares."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def _mean(neighbours: Sequence[Sequence[int]], point: int, at: Sequence[float]) -> float:
    """Return the mean of a point's neighbours; without neighbours, its own position."""
    near = neighbours[point]
    return fmean([at[other] for other in near]) if near else at[point]


def _number(row: Sequence[int], at: list[float]) -> None:
    for place, point in enumerate(row):
        at[point] = float(place)


def _columns(
    widths: Sequence[float], layer_of: Sequence[int], sizes: Sizes
) -> list[tuple[float, float]]:
    """Return the left and the right side of each column."""
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
    """Return the points from the right side of the first box to the left side of the last."""
    first, last = points[0], points[-1]
    path = [(columns[layer_of[first]][0] + widths[first], y[first])]
    for point in points[1:-1]:
        path += [(edge, y[point]) for edge in columns[layer_of[point]]]
    return (*path, (columns[layer_of[last]][0], y[last]))


# Text formats.

MARK_SIGNS = {Mark.BLUE: "■", Mark.GRAY: "□"}
# Fill and line colour of the two marks, and text colour of the states.
MARK_COLORS = {Mark.BLUE: ("#dbeafe", "#2563eb"), Mark.GRAY: ("#f3f4f6", "#6b7280")}
STATE_COLORS = {
    None: "#9ca3af",
    JobState.WAITING: "#b45309",
    JobState.RUNNING: "#0891b2",
    JobState.SUCCEEDED: "#15803d",
    JobState.FAILED: "#b91c1c",
    JobState.ABORTED: "#b91c1c",
    JobState.SKIPPED: "#6b7280",
    JobState.ADOPTED: "#6d28d9",
}


def legend(graph: Graph) -> str:
    """Return the meaning of the two marks."""
    return f"blue: a JobSpec on {graph.primary}; gray: none there"


def to_tree(graph: Graph) -> str:
    """Return a tree with the final datasets on top and below each dataset its inputs.

    A dataset that has been expanded before is only named again.
    """
    used = {edge.source for edge in graph.edges}
    tops = [position for position in range(len(graph.nodes)) if position not in used]
    lines = [f"chain {graph.title}"]
    sources = graph.sources_of()
    expanded: set[int] = set()
    # Not recursive: a pipeline may be thousands of datasets deep.
    waiting = [(top, "", at == len(tops) - 1) for at, top in enumerate(tops)][::-1]
    while waiting:
        position, indent, last = waiting.pop()
        below = sources[position]
        again = position in expanded and bool(below)
        branch = "└── " if last else "├── "
        lines.append(f"{indent}{branch}{_line(graph.nodes[position], again=again)}")
        if again:
            continue
        expanded.add(position)
        deeper = indent + ("    " if last else "│   ")
        waiting += [(s, deeper, at == len(below) - 1) for at, s in enumerate(below)][::-1]
    blue, gray = MARK_SIGNS[Mark.BLUE], MARK_SIGNS[Mark.GRAY]
    lines.append(f"{blue} a JobSpec on {graph.primary}   {gray} none there")
    return "\n".join(lines) + "\n"


def to_mermaid(graph: Graph) -> str:
    """Return a Mermaid flowchart, left to right."""
    return "\n".join(_mermaid_lines(graph)) + "\n"


def to_dot(graph: Graph) -> str:
    """Return a Graphviz digraph, left to right."""
    return "\n".join(_dot_lines(graph)) + "\n"


def _line(node: Node, *, again: bool) -> str:
    kind = "" if node.kind is DatasetKind.TABLE else f" [{node.kind}]"
    status = "(above)" if again else node.status
    return f"{MARK_SIGNS[node.mark]} {node.dataset}{kind}  on {node.place}  {status}"


def _mermaid_lines(graph: Graph) -> Iterator[str]:
    yield "flowchart LR"
    yield f"  %% {legend(graph)}"
    for position, node in enumerate(graph.nodes):
        opening, closing = ("[", "]") if node.kind is DatasetKind.TABLE else ("[/", "/]")
        shown = (f"<b>{_mermaid(str(node.dataset))}</b>", _mermaid(node.place))
        label = "<br/>".join((*shown, _mermaid(node.status)))
        yield f'  n{position}{opening}"{label}"{closing}:::{node.mark}'
    for edge in graph.edges:
        yield f"  n{edge.source} --> n{edge.target}"
    for mark, (fill, line) in MARK_COLORS.items():
        yield f"  classDef {mark} fill:{fill},stroke:{line},color:#111827"


def _mermaid(text: str) -> str:
    """Escape all characters that Mermaid could interpret; it reads `#number;` as a character."""
    return "".join(c if c.isalnum() or c in " ._-/()@" else f"#{ord(c)};" for c in text)


def _dot_lines(graph: Graph) -> Iterator[str]:
    yield "digraph plan {"
    yield f"  label={_dot(f'{graph.title} ({legend(graph)})')}"
    yield '  rankdir=LR; node [style=filled, fontname="Helvetica"]'
    for position, node in enumerate(graph.nodes):
        shape = "box" if node.kind is DatasetKind.TABLE else "folder"
        fill, line = MARK_COLORS[node.mark]
        label = _dot(f"{node.dataset}\n{node.place}\n{node.status}")
        yield f'  n{position} [label={label}, shape={shape}, fillcolor="{fill}", color="{line}"]'
    for edge in graph.edges:
        yield f"  n{edge.source} -> n{edge.target}"
    yield "}"


def _dot(text: str) -> str:
    """Return a quoted string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# SVG: one self-contained document without scripts, fonts or links.

_SIZES = Sizes()
_MARGIN = 24.0
_TOP = 64.0
_PADDING = 14.0
# The average width of a letter. A name that does not fit is cut; its tooltip has all of it.
_LETTER, _SMALL_LETTER = 8.2, 6.6
_NARROWEST, _WIDEST = 150.0, 848.0
_STYLE = """\
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #111827 }
.name { font-size: 14px; font-weight: 600 }
.small { font-size: 11.5px; fill: #4b5563 }
.edge { fill: none; stroke: #9ca3af; stroke-width: 1.5 }
.box { stroke-width: 1.5 }"""


def to_svg(graph: Graph) -> str:
    """Return the drawing, with a title and a description for screen readers."""
    widths = [_width(node) for node in graph.nodes]
    layout = lay_out(widths, [(edge.source, edge.target) for edge in graph.edges], _SIZES)
    return "\n".join(_lines(graph, widths, layout)) + "\n"


def _lines(graph: Graph, widths: list[float], layout: Layout) -> Iterator[str]:
    wide = max(layout.width, _letters(legend(graph)), _letters(f"chain {graph.title}"))
    width, height = wide + 2 * _MARGIN, layout.height + _TOP + _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-labelledby="title desc">'
    )
    yield f'<title id="title">{escape(f"Plan on {graph.title}")}</title>'
    yield f'<desc id="desc">{escape(_description(graph))}</desc>'
    yield f"<style>{_STYLE}</style>"
    yield _ARROW
    yield f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    yield from _heading(graph)
    yield f'<g transform="translate({_MARGIN:.0f} {_TOP:.0f})">'
    for points in layout.paths:
        yield f'<path class="edge" marker-end="url(#arrow)" d="{curve(points)}"/>'
    for at, node in enumerate(graph.nodes):
        yield from _box(node, layout.x[at], layout.y[at], widths[at])
    yield "</g>"
    yield "</svg>"


_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#9ca3af"/></marker></defs>'
)


def _description(graph: Graph) -> str:
    sentences = [f"{len(graph.nodes)} datasets. {legend(graph).capitalize()}."]
    sources = graph.sources_of()
    for at, node in enumerate(graph.nodes):
        made_of = ", ".join(str(graph.nodes[s].dataset) for s in sources[at])
        sentences.append(f"{_title(node)}{f'; made of {made_of}' if made_of else ''}.")
    return " ".join(sentences)


def _heading(graph: Graph) -> Iterator[str]:
    yield f'<text class="name" x="{_MARGIN:.0f}" y="28">{escape(f"chain {graph.title}")}</text>'
    x = _MARGIN
    for mark, meaning in ((Mark.BLUE, f"a JobSpec on {graph.primary}"), (Mark.GRAY, "none there")):
        fill, line = MARK_COLORS[mark]
        yield f'<rect x="{x:.0f}" y="38" width="11" height="11" fill="{fill}" stroke="{line}"/>'
        yield f'<text class="small" x="{x + 17:.0f}" y="48">{escape(meaning)}</text>'
        x += 17 + len(meaning) * _SMALL_LETTER + 16


def _box(node: Node, x: float, middle: float, width: float) -> Iterator[str]:
    fill, line = MARK_COLORS[node.mark]
    top = middle - _SIZES.box_height / 2
    # Files datasets have round corners, tables do not.
    radius = 4 if node.kind is DatasetKind.TABLE else 16
    yield f'<g class="node {node.mark}"><title>{escape(_title(node))}</title>'
    yield (
        f'<rect class="box" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{_SIZES.box_height:.1f}" rx="{radius}" fill="{fill}" stroke="{line}"/>'
    )
    left = x + _PADDING
    room = width - 2 * _PADDING
    name = cut_start(str(node.dataset), room, _LETTER)
    yield f'<text class="name" x="{left:.1f}" y="{top + 20:.1f}">{escape(name)}</text>'
    place = cut_start(_place(node), room, _SMALL_LETTER)
    yield f'<text class="small" x="{left:.1f}" y="{top + 35:.1f}">{escape(place)}</text>'
    status = cut_start(node.status, room, _SMALL_LETTER)
    yield (
        f'<text class="small" x="{left:.1f}" y="{top + 50:.1f}" '
        f'style="fill:{STATE_COLORS[node.state]}">{escape(status)}</text>'
    )
    yield "</g>"


def _place(node: Node) -> str:
    return node.place if node.kind is DatasetKind.TABLE else f"{node.place} · {node.kind}"


def _title(node: Node) -> str:
    by = f", made by {node.job} (JobSpec on {node.jobspec_branch})" if node.job else ""
    return f"{node.dataset} on {_place(node)}: {node.status}{by}, {node.mark}"


def _width(node: Node) -> float:
    small = max(len(_place(node)), len(node.status)) * _SMALL_LETTER
    needed = max(len(str(node.dataset)) * _LETTER, small) + 2 * _PADDING
    return min(max(needed, _NARROWEST), _WIDEST)


def _letters(text: str) -> float:
    return len(text) * _LETTER


def cut_start(text: str, width: float, letter: float) -> str:
    """Return the text, or its end if it is too long: names differ most at their ends."""
    room = int(width / letter)
    return text if len(text) <= room else "…" + text[-(room - 1) :]


def curve(points: Iterable[tuple[float, float]]) -> str:
    """Return path commands: curves between the columns, straight lines through them."""
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for at, (to_x, to_y) in enumerate(rest):
        if at % 2 == 1:
            parts.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            half = (x + to_x) / 2
            parts.append(f"C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(parts)


class GraphFormat(enum.StrEnum):
    TREE = "tree"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


_RENDERERS: dict[GraphFormat, Callable[[Graph], str]] = {
    GraphFormat.TREE: to_tree,
    GraphFormat.MERMAID: to_mermaid,
    GraphFormat.DOT: to_dot,
    GraphFormat.SVG: to_svg,
}


def render_json(graph: Graph, format: GraphFormat) -> dict[str, Any]:
    """Return `{"format", "text", "chain", "primary", "nodes", "edges"}`."""
    return {"format": format.value, "text": _RENDERERS[format](graph), **graph.to_json()}
