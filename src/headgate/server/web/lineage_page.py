"""The lineage page: the graph of datasets on a chain and their freshness, as SVG or as a list."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headgate.model.freshness import Reason
from headgate.model.graph import Edge, Graph, Mark, Node, add_views
from headgate.model.graph_render import Layout, Sizes, curve, cut_start, lay_out
from headgate.model.names import parse_dataset_name, split_names
from headgate.model.nouns import DatasetKind, JobState, join_parts
from headgate.server.web import markup
from headgate.server.web.page import Page, Visit, plan_everything, publish_hint

_SIZES = Sizes(box_height=64)
_MARGIN = 24
_PADDING = 14
# Widths of a letter in a wide font, at the sizes of names and of small text.
_LETTER = 8.3
_SMALL = 6.8
# Of a hundred letters; the label of the box has all of a longer name.
_NARROWEST, _WIDEST = 130.0, 866.0
# By state: the CSS class of a box, and its label.
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
_URGENCY = ("failed", "running", "stale", "adopted", "held", "fresh", "source")


@dataclass(frozen=True, kw_only=True)
class Namespace(Node):
    """The datasets of a namespace as one box, which opens them."""

    members: Sequence[Node]
    address: str

    @property
    def place(self) -> str:
        return f"{len(self.members)} datasets"


def state_of(node: Node) -> str:
    """Return `fresh`, `held`, `stale`, `adopted`, `source` (only read), or a state of a job."""
    return _state(node)[1]


def _state(node: Node) -> tuple[str, str]:
    if isinstance(node, Namespace):
        counts = Counter(map(_state, node.members))
        # The state that most needs a look colours the box.
        worst = min(counts, key=lambda state: _URGENCY.index(state[0]))
        return worst[0], ", ".join(f"{count} {label}" for (_, label), count in counts.items())
    return ("held", "held") if node.reason is Reason.HELD else _STATES[node.state]


def description_of(node: Node) -> str:
    """Return the description of a box, for screen readers and tooltips."""
    if isinstance(node, Namespace):
        return f"{_name(node)}, {node.place}: {state_of(node)}"
    reason = f" ({node.reason.value})" if node.reason and state_of(node) == "stale" else ""
    taken = f" from {node.adopted_from}" if node.adopted_from else ""
    made = f", made by {node.job} (JobSpec on {node.jobspec_branch})" if node.job else ""
    return f"{_name(node)} on {node.place}: {state_of(node)}{reason}{taken}{made}"


def address_of(graph: Graph, node: Node) -> str:
    """Return the address of a node's dataset on its branch; on the chain if not yet built there."""
    if isinstance(node, Namespace):
        return node.address
    is_there = node.state in {None, JobState.SKIPPED, JobState.SUCCEEDED}
    where = node.branch if is_there else ">".join(graph.chain)
    return markup.dataset_at(node.dataset, branch=where)


def drawing(graph: Graph, highlighted: str = "") -> Markup:
    """Return the graph as SVG, with edges below boxes and one dataset highlighted."""
    widths = [_width(node) for node in graph.nodes]
    layout = lay_out(widths, [(edge.source, edge.target) for edge in graph.edges], _SIZES)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    edges = [_edge(*one) for one in zip(graph.edges, layout.paths, strict=True)]
    boxes = [
        markup.tag("a", _shapes(node, at, layout, widths[at]), **_link(graph, at, highlighted))
        for at, node in enumerate(graph.nodes)
    ]
    return markup.tag(
        "svg",
        _ARROW,
        edges,
        boxes,
        class_="lineage",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="group",
        aria_label="Datasets and what they are made of",
    )


_ARROW = Markup(
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" '
    'markerHeight="10" markerUnits="userSpaceOnUse" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def _edge(edge: Edge, points: Sequence[tuple[float, float]]) -> Markup:
    path = curve((x + _MARGIN, y + _MARGIN) for x, y in points)
    return Markup(f'<path class="edge" data-s="{edge.source}" data-t="{edge.target}" d="{path}"/>')


def _link(graph: Graph, at: int, highlighted: str) -> dict[str, markup.Attribute]:
    node = graph.nodes[at]
    chosen = " chosen" if str(node.dataset) == highlighted else ""
    return {
        "href": address_of(graph, node),
        "class_": f"node {_state(node)[0]}{chosen}",
        "data_node": at,
        "aria_label": description_of(node),
        # The whole graph is one tab stop; arrow keys move between its boxes.
        "tabindex": -1 if at else 0,
    }


def _shapes(node: Node, at: int, layout: Layout, width: float) -> markup.Child:
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
        (_name(node), "name", 23, _LETTER),
        (node.place, "place", 39, _SMALL),
        (state_of(node), "state", 54, _SMALL),
    )
    texts = [
        markup.tag(
            "text",
            cut_start(text, width - 2 * _PADDING - 8, letter),
            class_=class_,
            x=f"{x + 23:.1f}",
            y=f"{top + down:.1f}",
        )
        for text, class_, down, letter in lines
    ]
    return [Markup(rect), Markup(mark), texts]


def _width(node: Node) -> float:
    small = max(len(node.place), len(state_of(node)) if isinstance(node, Namespace) else 0)
    needed = max(len(_name(node)) * _LETTER, small * _SMALL) + 2 * _PADDING + 8
    return min(max(needed, _NARROWEST), _WIDEST)


def legend() -> Markup:
    """Return the legend of the colours."""
    labels = {
        "fresh": "fresh: as its inputs and logic make it",
        "stale": "stale: a build would compute it",
        "adopted": "adopted: it exists elsewhere, a build would take it over",
        "held": "held: a reset removed it, a build leaves it so",
        "source": "source: only read",
    }
    return markup.join(
        markup.tag("span", markup.tag("i", class_=f"swatch {kind}"), label)
        for kind, label in labels.items()
    )


# A browser still pans and zooms so many nodes: about 50 ms per turn of the wheel.
_MOST_DRAWN = 2000
# More datasets are folded by namespace, but for the namespaces that the visitor opens.
_MOST_UNFOLDED = 500
_FOLDED = "Each box with .* has all datasets of a namespace; press it to open them."
_ZOOMS = (("+", "in", "Zoom in"), ("−", "out", "Zoom out"), ("⤢", "fit", "Fit to the window"))
_WAYS = "Drag to move, turn the wheel or pinch to zoom, press a box to open its dataset."
_KEYS = (
    " By keyboard: arrows move, + and − zoom, 0 fits; Enter goes to a box, from where arrows walk "
    "along the edges."
)
_TONES = {"fresh": "good", "stale": "warn", "adopted": "taken", "source": "quiet"}


def lineage_page(visit: Visit) -> Page:
    """Return the graph of all transforms on a chain, or the part of it around one dataset."""
    branch = visit.param("branch", visit.primary)
    configured = visit.store.settings.builds.fallback_of(branch)
    fallback = split_names(visit.param("fallback")) or configured
    dataset = visit.param("dataset")
    graph = load_graph(visit, branch, fallback)
    if graph is not None and dataset:
        graph = around(graph, dataset)
    return Page(
        title="Lineage",
        place=markup.LINEAGE,
        sections={
            "head": markup.heading("Lineage", _counts(graph)),
            "choose": _chooser(visit, branch, fallback, dataset),
            "graph": _body(visit, graph, dataset),
        },
    )


def load_graph(visit: Visit, branch: str, fallback: tuple[str, ...]) -> Graph | None:
    """Return the graph of a plan for all targets and of the views that the chain shows.

    None if the chain has no published transform and no view.
    """
    plan = plan_everything(visit, branch, fallback)
    chain = (branch, *visit.shown_branches(fallback))
    empty = Graph(chain=chain, primary=visit.primary, nodes=(), edges=())
    views = visit.store.overview.views(chain)
    graph = add_views(empty if plan is None else visit.store.graph(plan), views)
    return graph if graph.nodes else None


def around(graph: Graph, dataset: str) -> Graph:
    """Return the ancestors and descendants of a dataset, with the dataset itself; pure."""
    wanted = parse_dataset_name(dataset)
    start = {at for at, node in enumerate(graph.nodes) if node.dataset == wanted}
    up = _reach(start, [(edge.target, edge.source) for edge in graph.edges])
    down = _reach(start, [(edge.source, edge.target) for edge in graph.edges])
    kept = sorted(up | down)
    place = {old: new for new, old in enumerate(kept)}
    return Graph(
        chain=graph.chain,
        primary=graph.primary,
        nodes=tuple(graph.nodes[at] for at in kept),
        edges=tuple(
            Edge(source=place[e.source], target=place[e.target])
            for e in graph.edges
            if e.source in place and e.target in place
        ),
    )


def fold(graph: Graph, opened: Collection[str], address: Callable[[str], str]) -> Graph:
    """Return the graph with one node for each namespace that is not opened; pure."""
    spaces: dict[str, list[Node]] = {}
    for node in graph.nodes:
        spaces.setdefault(_space(node), []).append(node)
    nodes: list[Node] = []
    place: dict[Node, int] = {}
    for space, members in spaces.items():
        if space in opened or len(members) == 1:
            place |= {node: len(nodes) + at for at, node in enumerate(members)}
            nodes += members
            continue
        place |= dict.fromkeys(members, len(nodes))
        nodes.append(
            Namespace(
                dataset=members[0].dataset,
                branch="",
                kind=DatasetKind.TABLE,
                mark=Mark.BLUE if all(n.mark is Mark.BLUE for n in members) else Mark.GRAY,
                members=tuple(members),
                address=address(space),
            )
        )
    ends = ((place[graph.nodes[e.source]], place[graph.nodes[e.target]]) for e in graph.edges)
    edges = {(source, target): None for source, target in ends if source != target}
    return Graph(
        chain=graph.chain,
        primary=graph.primary,
        nodes=tuple(nodes),
        edges=tuple(Edge(source=source, target=target) for source, target in edges),
    )


def _space(node: Node) -> str:
    return join_parts(node.dataset.namespace)


def _name(node: Node) -> str:
    return f"{_space(node)}.*" if isinstance(node, Namespace) else str(node.dataset)


def _reach(start: set[int], steps: Iterable[tuple[int, int]]) -> set[int]:
    onward: dict[int, list[int]] = {}
    for here, there in steps:
        onward.setdefault(here, []).append(there)
    seen, waiting = set(start), list(start)
    while waiting:
        for there in onward.get(waiting.pop(), ()):
            if there not in seen:
                seen.add(there)
                waiting.append(there)
    return seen


def _counts(graph: Graph | None) -> Markup | None:
    if graph is None:
        return None
    counts = Counter(state_of(node) for node in graph.nodes)
    shown = [
        markup.badge(f"{number} {state}", _TONES.get(state)) for state, number in counts.items()
    ]
    total = markup.beside(markup.count(len(graph.nodes), "dataset"))
    return markup.tag("span", total, shown, class_="chips", role="status")


def _chooser(visit: Visit, branch: str, fallback: tuple[str, ...], dataset: str) -> Markup:
    return markup.form(
        markup.LINEAGE,
        markup.field("branch", "Branch", branch),
        markup.field("fallback", "Fallbacks", ", ".join(fallback), hint="none"),
        markup.field("dataset", "Around dataset", dataset, hint="all"),
        markup.hidden("view", visit.param("view")),
        label="Choose what to draw",
    )


def _body(visit: Visit, graph: Graph | None, dataset: str) -> Markup:
    if graph is not None and not graph.nodes:
        whole = markup.link("See the whole lineage", _at(visit, dataset=None))
        return markup.empty(
            f"{dataset} is neither read nor made by a transform on this chain.", whole
        )
    if graph is None:
        return markup.empty("No transform is published on this chain.", publish_hint())
    opened = split_names(visit.param("open"))
    if dataset:
        opened += (join_parts(parse_dataset_name(dataset).namespace),)
    folds: Markup | None = None
    if len(graph.nodes) > _MOST_UNFOLDED:
        graph = fold(graph, opened, lambda space: _at(visit, open=",".join((*opened, space))))
        links = [
            markup.link(
                f"Fold {space}", _at(visit, open=",".join(o for o in opened if o != space) or None)
            )
            for space in opened
        ]
        folds = markup.tag("p", _FOLDED, links, class_="hint chips")
    as_list = visit.param("view") == "list"
    ways = [
        ("Graph", _at(visit, view=None), not as_list),
        ("List", _at(visit, view="list"), as_list),
    ]
    drawn = _list(graph) if as_list else stage(graph, dataset)
    return markup.join([markup.tabs("Ways to look at it", ways), folds, drawn])


def _at(visit: Visit, **changed: str | None) -> str:
    return markup.with_query(markup.LINEAGE, **{**visit.query, **changed})


def stage(graph: Graph, dataset: str) -> Markup:
    """Return the drawing with its tools, or a note if the graph is too large to draw."""
    if len(graph.nodes) > _MOST_DRAWN:
        note = f"{markup.count(len(graph.nodes), 'dataset')} are too many for one picture."
        return markup.empty(
            note, "Name a dataset to see its inputs and outputs, or look at the list."
        )
    shown = markup.tag(
        "div",
        markup.tag("div", drawing(graph, dataset), class_="sheet"),
        markup.tag("p", class_="told", hidden=True, aria_hidden="true"),
        class_="stage",
        tabindex="0",
        role="group",
        aria_label=f"Lineage on {graph.title}: {markup.count(len(graph.nodes), 'dataset')}",
        aria_describedby="ways",
    )
    ways = markup.tag(
        "p", _WAYS, markup.tag("span", _KEYS, class_="keys"), id="ways", class_="hint"
    )
    drawn = markup.tag("div", _tools(), shown, data_graph=True)
    return markup.join([drawn, markup.tag("p", legend(), class_="legend key"), ways])


_FIND = Markup(
    '<input type="search" placeholder="Find: name, branch, state" aria-label="Find in the graph" '
    'autocomplete="off" spellcheck="false" data-find>'
)
_ZOOM = Markup(
    '<button type="button" class="button" data-zoom="{}" aria-label="{}" title="{}">{}</button>'
)


def _tools() -> Markup:
    buttons = [_ZOOM.format(how, label, label, sign) for sign, how, label in _ZOOMS]
    return markup.tag("div", markup.tag("output"), _FIND, buttons, class_="tools")


def _list(graph: Graph) -> Markup:
    sources = graph.sources_of()
    rows: list[tuple[markup.Child, ...]] = []
    for at, node in enumerate(graph.nodes):
        state = state_of(node)
        reads = [
            markup.link(_name(source), address_of(graph, source), class_="chip")
            for source in (graph.nodes[s] for s in sources[at])
        ]
        rows.append(
            (
                markup.link(_name(node), address_of(graph, node)),
                node.place,
                markup.badge(state, _TONES.get(state)),
                node.reason.value if node.reason else "",
                markup.chips(reads),
                node.job or "",
            )
        )
    headings = ("Dataset", "On branch", "State", "Why", "Made of", "By")
    return markup.table(headings, rows, label="Datasets in dependency order")
