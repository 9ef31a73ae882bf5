"""A graph of datasets as an SVG whose boxes are links; colours come from the theme; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.model.graph.layout import Layout, Sizes, lay_out
from headgate.model.graph.nodes import Graph, Mark, Node
from headgate.model.job_states import JobState
from headgate.model.nouns import DatasetKind
from headgate.server.web import addresses
from headgate.server.web.markup import Attribute, Child, Markup, join, tag

_SIZES = Sizes(box_height=64)
_MARGIN = 24
_PADDING = 14
# What a letter takes in a wide font.
_LETTER = 8.3
_SMALL = 6.8
_NARROWEST, _WIDEST = 130.0, 320.0
# What a box is drawn as, and the word for it.
_STATES = {
    None: ("source", "source"),
    JobState.SKIPPED: ("fresh", "fresh"),
    JobState.ADOPTED: ("adopted", "adopted"),
    JobState.WAITING: ("stale", "stale"),
    JobState.RUNNING: ("running", "running"),
    JobState.SUCCEEDED: ("fresh", "built"),
    JobState.FAILED: ("failed", "failed"),
    JobState.ABORTED: ("failed", "aborted"),
}


def state_of(node: Node) -> str:
    """`fresh`, `stale`, `adopted`, or `source` for what is only read; while building, more."""
    return _STATES[node.state][1]


def told_of(node: Node) -> str:
    """A box in words, for those who hear it or point at it."""
    reason = f" ({node.reason.value})" if node.reason and state_of(node) == "stale" else ""
    taken = f" from {node.adopted_from}" if node.adopted_from else ""
    made = f", made by {node.job} (JobSpec on {node.jobspec_branch})" if node.job else ""
    return f"{node.dataset} on {node.place}: {state_of(node)}{reason}{taken}{made}"


def address_of(graph: Graph, node: Node) -> str:
    """The dataset where it is shown; what is still to be made there, as the chain shows it now."""
    is_there = node.state in {None, JobState.SKIPPED, JobState.SUCCEEDED}
    where = node.branch if is_there else ">".join(graph.chain)
    return addresses.dataset_at(node.dataset, branch=where)


def drawing(graph: Graph, highlighted: str = "") -> Markup:
    """The whole graph, edges below boxes; a highlighted dataset stands out."""
    widths = [_width(node) for node in graph.nodes]
    layout = lay_out(widths, [(edge.source, edge.target) for edge in graph.edges], _SIZES)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    edges = [_edge(graph, at, points) for at, points in enumerate(layout.paths)]
    boxes = [
        tag("a", _shapes(node, at, layout, widths[at]), **_link(graph, at, highlighted))
        for at, node in enumerate(graph.nodes)
    ]
    return tag(
        "svg",
        _ARROW,
        edges,
        boxes,
        class_="lineage",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="presentation",
    )


_ARROW = Markup(
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" '
    'markerHeight="10" markerUnits="userSpaceOnUse" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def _edge(graph: Graph, at: int, points: Sequence[tuple[float, float]]) -> Markup:
    edge = graph.edges[at]
    return Markup(
        f'<path class="edge" data-s="{edge.source}" data-t="{edge.target}" d="{_curve(points)}"/>'
    )


def _link(graph: Graph, at: int, highlighted: str) -> dict[str, Attribute]:
    node = graph.nodes[at]
    chosen = " chosen" if str(node.dataset) == highlighted else ""
    return {
        "href": address_of(graph, node),
        "class_": f"node {_STATES[node.state][0]}{chosen}",
        "data_node": at,
        "aria_label": told_of(node),
        # One stop for the tab key; from there the arrows lead on.
        "tabindex": -1 if at else 0,
    }


def _shapes(node: Node, at: int, layout: Layout, width: float) -> Child:
    x, top = layout.x[at] + _MARGIN, layout.y[at] + _MARGIN - _SIZES.box_height / 2
    radius = 8 if node.kind is DatasetKind.TABLE else 22
    rect = (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{_SIZES.box_height:.1f}" rx="{radius}"/>'
    )
    mark = (
        f'<rect class="{"blue" if node.mark is Mark.BLUE else "gray"}" x="{x + 8:.1f}" '
        f'y="{top + 14:.1f}" width="9" height="9" rx="2"/>'
    )
    lines = (
        (str(node.dataset), "name", 23, 23, _LETTER),
        (node.place, "place", 39, 23, _SMALL),
        (_STATES[node.state][1], "state", 54, 23, _SMALL),
    )
    texts = [
        tag(
            "text",
            _cut(text, width, letter),
            class_=class_,
            x=f"{x + left:.1f}",
            y=f"{top + down:.1f}",
        )
        for text, class_, down, left, letter in lines
    ]
    return [Markup(rect), Markup(mark), texts]


def _width(node: Node) -> float:
    needed = max(len(str(node.dataset)) * _LETTER, len(node.place) * _SMALL) + 2 * _PADDING + 8
    return min(max(needed, _NARROWEST), _WIDEST)


def _cut(text: str, width: float, letter: float) -> str:
    """The text, or its end: that is where names differ."""
    room = int((width - 2 * _PADDING - 8) / letter)
    return text if len(text) <= room else "…" + text[-(room - 1) :]


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Soft between the layers, straight through them."""
    return " ".join(_pieces(points))


def _pieces(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    (x, y), *rest = [(x + _MARGIN, y + _MARGIN) for x, y in points]
    yield f"M{x:.1f} {y:.1f}"
    for at, (to_x, to_y) in enumerate(rest):
        if at % 2 == 1:
            yield f"L{to_x:.1f} {to_y:.1f}"
        else:
            half = (x + to_x) / 2
            yield f"C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y


def legend() -> Markup:
    """What the colours mean."""
    kinds = ("fresh", "stale", "adopted", "source")
    told = {
        "fresh": "fresh: as its inputs and logic make it",
        "stale": "stale: a build would compute it",
        "adopted": "adopted: it exists elsewhere, a build would take it over",
        "source": "source: only read",
    }
    return join([tag("span", tag("i", class_=f"swatch {k}"), told[k]) for k in kinds])
