"""The tree of branch names, and the part of a graph around a dataset."""

from __future__ import annotations

from headgate.model.graph import Edge, Graph, Mark, Node
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BranchNameLine, DatasetKind, JobState
from headgate.server.web.branches_page import place_in_tree
from headgate.server.web.lineage_page import around, description_of, drawing, stage, state_of


def _line(name: str, parent: str | None) -> BranchNameLine:
    return BranchNameLine(
        name=name,
        parent=parent,
        other_parents=(),
        dataset_count=1,
        differing=0,
        open=0,
        last=None,
        protected=(),
    )


def _placed(*pairs: tuple[str, str | None]) -> list[tuple[int, str]]:
    return [(p.depth, p.line.name) for p in place_in_tree(_line(*pair) for pair in pairs)]


def test_place_in_tree_puts_children_below_their_parents() -> None:
    placed = _placed(("a", "develop"), ("b", "a"), ("develop", "master"), ("master", None))
    assert placed == [(0, "master"), (1, "develop"), (2, "a"), (3, "b")]


def test_place_in_tree_with_an_unseen_parent_or_a_circle_loses_nobody() -> None:
    assert _placed(("a", "gone"), ("b", "a")) == [(0, "a"), (1, "b")]
    assert _placed(("x", "y"), ("y", "x")) == [(0, "x"), (0, "y")]


def _graph(*edges: tuple[int, int], count: int = 4) -> Graph:
    nodes = tuple(
        Node(
            dataset=parse_dataset_name(f"n.d{at}"),
            branch="feature",
            kind=DatasetKind.TABLE,
            mark=Mark.BLUE,
            state=JobState.WAITING if at else None,
        )
        for at in range(count)
    )
    found = tuple(Edge(source=source, target=target) for source, target in edges)
    return Graph(chain=("feature", "master"), primary="master", nodes=nodes, edges=found)


def test_around_a_dataset_keeps_what_it_hangs_on_and_what_hangs_on_it() -> None:
    graph = around(_graph((0, 1), (1, 2), (0, 3)), "n.d1")
    assert [str(node.dataset) for node in graph.nodes] == ["n.d0", "n.d1", "n.d2"]
    assert [(e.source, e.target) for e in graph.edges] == [(0, 1), (1, 2)]
    assert around(graph, "no.such").nodes == ()


def test_drawing_has_a_link_for_each_dataset_and_a_path_for_each_edge() -> None:
    graph = _graph((0, 1), (1, 2), (0, 3))
    drawn = drawing(graph, "n.d2")
    assert drawn.count("<a ") == 4 and drawn.count('class="edge"') == 3
    assert drawn.count("chosen") == 1 and "stale" in drawn
    assert state_of(graph.nodes[0]) == "source"
    assert description_of(graph.nodes[1]) == "n.d1 on feature: stale"


def test_stage_of_a_graph_too_large_to_draw_says_what_to_do() -> None:
    assert "too many for one picture" in stage(_graph(count=2001), "")
    assert "<svg" in stage(_graph(count=500), "")
