"""Graph of a plan: nodes, marks and branches, and the four ways to draw it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from headgate.model.graph import Graph, Mark
from headgate.model.graph_render import Layout, Sizes, lay_out, to_dot, to_mermaid, to_svg, to_tree
from headgate.model.nouns import DatasetKind, JobState
from tests.support.graphs import chain_of, graph_of, made_from, view
from tests.support.jobspecs import name, spec

_SVG = "{http://www.w3.org/2000/svg}"
_NASTY = "s.`<&\"'#];-->\u00e9`"


def seed() -> Graph:
    """Return a graph: A from master; B and C stale on feature, C without a JobSpec on master."""
    b, c = spec("s.b", "s.a"), spec("s.c", "s.b")
    raw = {name("s.a"): DatasetKind.FILES}
    return graph_of(b, c, targets="s.c", views=[view("s.a", "master")], blue="s.b", kinds=raw)


def test_graph_of_the_seed_example_says_where_each_dataset_is_and_why() -> None:
    graph = seed()
    told = [(str(n.dataset), n.branch, n.mark, n.status) for n in graph.nodes]
    assert told == [
        ("s.a", "master", Mark.GRAY, "read"),
        ("s.b", "feature", Mark.BLUE, "waiting (never-built)"),
        ("s.c", "feature", Mark.GRAY, "waiting (never-built)"),
    ]
    assert [(e.source, e.target) for e in graph.edges] == [(0, 1), (1, 2)]


def test_graph_with_a_fresh_output_shows_the_branch_that_has_it() -> None:
    b, c = spec("s.b", "s.a"), spec("s.c", "s.b")
    views = [view("s.a", "master"), view("s.b", "master", made_from(b))]
    graph = graph_of(b, c, targets="s.c", views=views)
    by_name = {str(node.dataset): node for node in graph.nodes}
    assert (by_name["s.b"].branch, by_name["s.b"].state) == ("master", JobState.SKIPPED)
    assert by_name["s.b"].status == "skipped (fresh)"
    assert by_name["s.c"].branch == "feature"


@pytest.mark.parametrize(
    ("given", "place"), [("s.a#master", "master"), ("s.a@t-s.a", "feature @ t-s.a")]
)
def test_graph_with_a_pinned_input_of_the_same_dataset_keeps_them_apart(
    given: str, place: str
) -> None:
    pinned = [view("s.a", place.partition(" ")[0])]
    graph = graph_of(spec("s.a", given), targets="s.a", pinned=pinned)
    assert [(str(n.dataset), n.place) for n in graph.nodes] == [("s.a", place), ("s.a", "feature")]
    assert [(e.source, e.target) for e in graph.edges] == [(0, 1)]


def test_graph_as_json_has_the_words_of_the_interface() -> None:
    document = seed().to_json()
    assert document["chain"] == ["feature", "master"]
    assert document["nodes"][1] == {
        "dataset": "s.b",
        "branch": "feature",
        "transaction": None,
        "kind": "table",
        "mark": "blue",
        "job": "pipeline.s_b",
        "jobspec_branch": "feature",
        "state": "waiting",
        "reason": "never-built",
        "adopted_from": None,
    }
    assert document["edges"][0] == {"source": 0, "target": 1}


def test_tree_of_the_seed_example_unfolds_the_target() -> None:
    assert to_tree(seed()) == (
        "chain feature > master\n"
        "└── □ s.c  on feature  waiting (never-built)\n"
        "    └── ■ s.b  on feature  waiting (never-built)\n"
        "        └── □ s.a [files]  on master  read\n"
        "■ a JobSpec on master   □ none there\n"
    )


def test_tree_with_a_dataset_used_twice_unfolds_it_once() -> None:
    specs = [spec("s.a"), spec("s.b", "s.a"), spec("s.c", "s.b"), spec("s.d", "s.b", "s.c")]
    lines = to_tree(graph_of(*specs, targets="s.d")).splitlines()
    assert sum("s.b" in line for line in lines) == 2
    assert sum("(above)" in line for line in lines) == 1
    assert sum("s.a" in line for line in lines) == 1


def test_mermaid_of_any_name_keeps_one_quoted_label_a_node() -> None:
    text = to_mermaid(graph_of(spec(_NASTY), targets=_NASTY))
    [line] = [line for line in text.splitlines() if line.startswith("  n0")]
    label = re.fullmatch(r'  n0\["(.*)"\]:::gray', line)
    assert label is not None
    assert not set(label[1].replace("<b>", "").replace("</b>", "").replace("<br/>", "")) & set(
        "<>\"'`[]{}"
    )


def test_mermaid_of_the_seed_example_has_shapes_marks_and_edges() -> None:
    lines = to_mermaid(seed()).splitlines()
    assert lines[0] == "flowchart LR"
    assert '  n0[/"<b>s.a</b><br/>master<br/>read"/]:::gray' in lines
    assert "  n0 --> n1" in lines and "  n1 --> n2" in lines


def test_dot_of_any_name_escapes_quotes_and_backslashes() -> None:
    graph = graph_of(spec("s.a"), targets="s.a")
    odd = replace(graph, nodes=(replace(graph.nodes[0], branch='a"b\\'),))
    assert '[label="s.a\\na\\"b\\\\\\nwaiting (never-built)"' in to_dot(odd)
    assert to_dot(seed()).count(" -> ") == 2


def test_svg_of_any_name_is_well_formed_and_says_it_whole() -> None:
    root = ElementTree.fromstring(to_svg(graph_of(spec(_NASTY), targets=_NASTY)))
    titles = [element.text or "" for element in root.iter(f"{_SVG}title")]
    assert any(str(name(_NASTY)) in title for title in titles)


def test_svg_of_a_name_of_a_hundred_letters_has_all_of_it_and_the_end_of_a_longer_one() -> None:
    whole, longer = (f"s.{'a' * (letters - 3)}z" for letters in (100, 150))
    root = ElementTree.fromstring(
        to_svg(graph_of(spec(whole), spec(longer), targets=f"{whole} {longer}"))
    )
    names = [one.text or "" for one in root.iter(f"{_SVG}text") if one.get("class") == "name"]
    assert whole in names
    assert [one[-1] for one in names if one.startswith("…")] == ["z"]


def test_svg_is_accessible_and_names_no_address() -> None:
    text = to_svg(seed())
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    labels = root.attrib["aria-labelledby"].split()
    found = {e.attrib["id"]: e.text or "" for e in root.iter() if e.attrib.get("id") in labels}
    assert "feature > master" in found["title"]
    assert "s.c on feature: waiting (never-built)" in found["desc"]
    assert "made of s.b" in found["desc"]
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(?:script|image|use|foreignObject)\b|href", text)


def test_svg_of_sixty_datasets_has_a_box_for_each_and_none_overlap() -> None:
    specs = chain_of(60)
    root = ElementTree.fromstring(to_svg(graph_of(*specs, targets="g.d59 g.d58 g.d40")))
    boxes = [
        tuple(float(e.attrib[key]) for key in ("x", "y", "width", "height"))
        for e in root.iter(f"{_SVG}rect")
        if e.attrib.get("class") == "box"
    ]
    assert len(boxes) == 60
    assert not [pair for pair in itertools.combinations(boxes, 2) if _overlap(*pair)]


def test_layout_puts_what_a_box_is_made_of_left_of_it() -> None:
    edges = [(0, 1), (1, 2), (0, 2), (3, 2)]
    layout = lay_out([100, 200, 100, 100], edges)
    assert all(layout.x[source] < layout.x[target] for source, target in edges)
    assert [path[0][0] for path in layout.paths] == [100, layout.x[1] + 200, 100, 100]


def test_layout_leads_a_long_edge_around_the_boxes_between() -> None:
    sizes = Sizes()
    layout = lay_out([100] * 3, [(0, 1), (1, 2), (0, 2)], sizes)
    passing = layout.paths[2][1:-1]
    assert [x for x, _ in passing] == [layout.x[1], layout.x[1] + 100]
    assert all(abs(y - layout.y[1]) > sizes.box_height / 2 for _, y in passing)


def test_layout_of_a_tall_layer_is_folded_into_columns_that_fit_a_window() -> None:
    """Three hundred outputs of one source would be a tall column; they stay right and apart."""
    count, sizes = 300, Sizes()
    edges = [(0, node) for node in range(1, count)]
    layout = lay_out([100.0] * count, edges, sizes)
    assert 1 < layout.width / layout.height < 3
    assert all(layout.x[node] > layout.x[0] for node in range(1, count))
    boxes = [(x, y, 100, sizes.box_height) for x, y in zip(layout.x, layout.y, strict=True)]
    assert not [pair for pair in itertools.combinations(boxes, 2) if _overlap(*pair)]


def test_layout_leads_edges_of_one_box_together_until_they_part() -> None:
    layout = lay_out([100] * 5, [(0, 1), (1, 2), (2, 3), (2, 4), (0, 3), (0, 4)])
    third, fourth = layout.paths[4], layout.paths[5]
    assert third[:-1] == fourth[:-1]
    assert third[-1] != fourth[-1]


@pytest.mark.parametrize("edges", [[], [(0, 0)], [(0, 1), (1, 0)]])
def test_layout_of_nothing_or_of_a_circle_still_places_everything(
    edges: list[tuple[int, int]],
) -> None:
    assert lay_out([], []) == Layout(x=(), y=(), paths=(), width=0.0, height=29.0)
    assert len(lay_out([100, 100], edges).y) == 2


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    (x, y, width, height), (u, v, breadth, length) = one, other
    return x < u + breadth and u < x + width and y < v + length and v < y + height
