"""A graph in the formats that people ask for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from headgate.model.graph.nodes import Graph
from headgate.model.graph.svg import to_svg
from headgate.model.graph.text import to_dot, to_mermaid, to_tree


class GraphFormat(enum.StrEnum):
    TREE = "tree"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


_DRAWN: dict[GraphFormat, Callable[[Graph], str]] = {
    GraphFormat.TREE: to_tree,
    GraphFormat.MERMAID: to_mermaid,
    GraphFormat.DOT: to_dot,
    GraphFormat.SVG: to_svg,
}


def drawn_json(graph: Graph, format: GraphFormat) -> dict[str, Any]:
    """`{"format", "text", "chain", "primary", "nodes", "edges"}`."""
    return {"format": format.value, "text": _DRAWN[format](graph), **graph.to_json()}
