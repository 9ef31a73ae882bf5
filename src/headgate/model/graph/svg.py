"""A graph as one SVG document that stands alone: no script, no font, no address; pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from headgate.model.graph.layout import Layout, Sizes, lay_out
from headgate.model.graph.nodes import Graph, Mark, Node
from headgate.model.graph.text import MARK_COLORS, STATE_COLORS, legend
from headgate.model.nouns import DatasetKind

_SIZES = Sizes()
_MARGIN = 24.0
_TOP = 64.0
_PADDING = 14.0
# What a letter takes on average; a name that is longer than the box is cut, its title is whole.
_LETTER, _SMALL_LETTER = 8.2, 6.6
_NARROWEST, _WIDEST = 150.0, 380.0
_STYLE = """\
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #111827 }
.name { font-size: 14px; font-weight: 600 }
.small { font-size: 11.5px; fill: #4b5563 }
.edge { fill: none; stroke: #9ca3af; stroke-width: 1.5 }
.box { stroke-width: 1.5 }"""


def to_svg(graph: Graph) -> str:
    """The drawing, with a title and a description for those who hear it."""
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
        yield f'<path class="edge" marker-end="url(#arrow)" d="{_curve(points)}"/>'
    for at, node in enumerate(graph.nodes):
        yield from _box(node, layout.x[at], layout.y[at], widths[at])
    yield "</g>"
    yield "</svg>"


_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#9ca3af"/></marker></defs>'
)


def _description(graph: Graph) -> str:
    told = [f"{len(graph.nodes)} datasets. {legend(graph).capitalize()}."]
    sources = graph.sources_of()
    for at, node in enumerate(graph.nodes):
        made_of = ", ".join(str(graph.nodes[s].dataset) for s in sources[at])
        told.append(f"{_title(node)}{f'; made of {made_of}' if made_of else ''}.")
    return " ".join(told)


def _heading(graph: Graph) -> Iterator[str]:
    yield f'<text class="name" x="{_MARGIN:.0f}" y="28">{escape(f"chain {graph.title}")}</text>'
    x = _MARGIN
    for mark, told in (
        (Mark.BLUE, f"a JobSpec on {graph.primary}"),
        (Mark.GRAY, "none there"),
    ):
        fill, line = MARK_COLORS[mark]
        yield f'<rect x="{x:.0f}" y="38" width="11" height="11" fill="{fill}" stroke="{line}"/>'
        yield f'<text class="small" x="{x + 17:.0f}" y="48">{escape(told)}</text>'
        x += 17 + len(told) * _SMALL_LETTER + 16


def _box(node: Node, x: float, middle: float, width: float) -> Iterator[str]:
    fill, line = MARK_COLORS[node.mark]
    top = middle - _SIZES.box_height / 2
    # A files dataset has round corners, a table has not.
    radius = 4 if node.kind is DatasetKind.TABLE else 16
    yield f'<g class="node {node.mark}"><title>{escape(_title(node))}</title>'
    yield (
        f'<rect class="box" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{_SIZES.box_height:.1f}" rx="{radius}" fill="{fill}" stroke="{line}"/>'
    )
    left = x + _PADDING
    name = _cut(str(node.dataset), width, _LETTER)
    yield f'<text class="name" x="{left:.1f}" y="{top + 20:.1f}">{escape(name)}</text>'
    place = _cut(_place(node), width, _SMALL_LETTER)
    yield f'<text class="small" x="{left:.1f}" y="{top + 35:.1f}">{escape(place)}</text>'
    status = _cut(node.status, width, _SMALL_LETTER)
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


def _cut(text: str, width: float, letter: float) -> str:
    """The text, or its end: that is where names differ."""
    room = int((width - 2 * _PADDING) / letter)
    return text if len(text) <= room else "…" + text[-(room - 1) :]


def _curve(points: tuple[tuple[float, float], ...]) -> str:
    """Soft between the layers, straight through them."""
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
