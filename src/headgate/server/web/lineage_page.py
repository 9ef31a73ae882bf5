"""Lineage: what is made of what on a branch and its fallbacks, and how up to date it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headgate.model.graph.nodes import Edge, Graph
from headgate.model.names import listed, parse_dataset_name
from headgate.server.web import addresses
from headgate.server.web.freshness import plan_everything
from headgate.server.web.lineage_drawing import address_of, drawing, legend, state_of
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    command,
    count,
    empty,
    field,
    form,
    heading,
    hidden,
    link,
    table,
    tabs,
)
from headgate.server.web.visiting import Page, Section, Visit

# A browser still moves about in so many: some 50 ms for a turn of the wheel.
_MOST_DRAWN = 2000
_ZOOMS = (("+", "in", "Zoom in"), ("−", "out", "Zoom out"), ("⤢", "fit", "Fit to the window"))
_WAYS = "Drag to move, turn the wheel or pinch to zoom, press a box to open its dataset."
_KEYS = (
    " By keyboard: arrows move, + and − zoom, 0 fits; Enter goes to a box, from where arrows walk "
    "along the edges."
)
_TONES = {"fresh": "good", "stale": "warn", "adopted": "taken", "source": "quiet"}


def lineage_page(visit: Visit) -> Page:
    """The graph of all that a chain has transforms for, or of what one dataset hangs on."""
    branch = visit.asked("branch", visit.primary)
    configured = visit.store.settings.builds.fallback_of(branch)
    fallback = listed(visit.asked("fallback")) or configured
    dataset = visit.asked("dataset")
    graph = load_graph(visit, branch, fallback)
    if graph is not None and dataset:
        graph = around(graph, dataset)
    return Page(
        title="Lineage",
        place=addresses.LINEAGE,
        sections=(
            Section(key="head", body=heading("Lineage", _counts(graph))),
            Section(key="choose", body=_chooser(visit, branch, fallback, dataset)),
            Section(key="graph", body=_body(visit, graph, dataset)),
        ),
    )


def load_graph(visit: Visit, branch: str, fallback: tuple[str, ...]) -> Graph | None:
    """The graph of a plan for everything; None where no transform is published on the chain."""
    plan = plan_everything(visit, branch, fallback)
    return None if plan is None else visit.store.graph(plan)


def around(graph: Graph, dataset: str) -> Graph:
    """Only what a dataset is made of, and what is made of it; pure."""
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
    shown = [badge(f"{number} {state}", _TONES.get(state)) for state, number in counts.items()]
    told = tag("span", count(len(graph.nodes), "dataset"), class_="beside")
    return tag("span", told, shown, class_="chips", role="status")


def _chooser(visit: Visit, branch: str, fallback: tuple[str, ...], dataset: str) -> Markup:
    return form(
        addresses.LINEAGE,
        field("branch", "Branch", branch),
        field("fallback", "Fallbacks", ", ".join(fallback), hint="none"),
        field("dataset", "Around dataset", dataset, hint="all"),
        hidden("view", visit.asked("view")),
        label="Choose what to draw",
    )


def _body(visit: Visit, graph: Graph | None, dataset: str) -> Markup:
    if graph is not None and not graph.nodes:
        whole = link("See the whole lineage", _at(visit, dataset=None))
        return empty(f"{dataset} is neither read nor made by a transform on this chain.", whole)
    if graph is None:
        hint = join(
            ["Publish transforms from their repository:", command("headgate jobspecs publish")]
        )
        return empty("No transform is published on this chain.", hint)
    as_list = visit.asked("view") == "list"
    ways = [
        ("Graph", _at(visit, view=None), not as_list),
        ("List", _at(visit, view="list"), as_list),
    ]
    drawn = _list(graph) if as_list else stage(graph, dataset)
    return join([tabs("Ways to look at it", ways), drawn])


def _at(visit: Visit, **changed: str | None) -> str:
    return addresses.with_query(addresses.LINEAGE, **{**visit.query, **changed})


def stage(graph: Graph, dataset: str) -> Markup:
    """The drawing with its tools, or a word that it would be too large to be of use."""
    if len(graph.nodes) > _MOST_DRAWN:
        told = f"{count(len(graph.nodes), 'dataset')} are too many for one picture."
        return empty(told, "Name a dataset to see what it hangs on, or look at the list.")
    shown = tag(
        "div",
        tag("div", drawing(graph, dataset), class_="sheet"),
        tag("p", class_="told", hidden=True, aria_hidden="true"),
        _tools(),
        class_="stage",
        data_stage=True,
        tabindex="0",
        role="group",
        aria_label=f"Lineage on {graph.title}: {count(len(graph.nodes), 'dataset')}",
        aria_describedby="ways",
    )
    ways = tag("p", _WAYS, tag("span", _KEYS, class_="keys"), id="ways", class_="hint")
    return join([shown, tag("p", legend(), class_="legend key"), ways])


def _tools() -> Markup:
    find = tag(
        "input",
        type="search",
        placeholder="Find: name, branch, state",
        aria_label="Find in the graph",
        autocomplete="off",
        spellcheck="false",
        data_find=True,
    )
    buttons = [
        tag(
            "button",
            sign,
            type="button",
            class_="button",
            data_zoom=how,
            aria_label=told,
            title=told,
        )
        for sign, how, told in _ZOOMS
    ]
    return tag("div", tag("output"), find, buttons, class_="tools")


def _list(graph: Graph) -> Markup:
    sources = graph.sources_of()
    rows: list[tuple[Child, ...]] = []
    for at, node in enumerate(graph.nodes):
        state = state_of(node)
        reads = [
            link(str(source.dataset), address_of(graph, source), class_="chip")
            for source in (graph.nodes[s] for s in sources[at])
        ]
        rows.append(
            (
                link(str(node.dataset), address_of(graph, node)),
                node.place,
                badge(state, _TONES.get(state)),
                node.reason.value if node.reason else "",
                tag("span", reads, class_="chips"),
                node.job or "",
            )
        )
    headings = ("Dataset", "On branch", "State", "Why", "Made of", "By")
    return table(headings, rows, label="Datasets in dependency order")
