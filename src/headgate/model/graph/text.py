"""A graph as text: a tree for a terminal, Mermaid for a web page, DOT for Graphviz; pure."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.model.graph.nodes import Graph, Mark, Node
from headgate.model.job_states import JobState
from headgate.model.nouns import DatasetKind

MARK_SIGNS = {Mark.BLUE: "■", Mark.GRAY: "□"}
# Fill and line of the two marks, and the line of each state that asks for attention.
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
    """What the two marks mean here."""
    return f"blue: a JobSpec on {graph.primary}; gray: none there"


def to_tree(graph: Graph) -> str:
    """What nothing else is made of on top, and below each dataset what it is made of.

    A dataset that has been unfolded already is only named again.
    """
    used = {edge.source for edge in graph.edges}
    tops = [position for position in range(len(graph.nodes)) if position not in used]
    lines = [f"chain {graph.title}"]
    sources = graph.sources_of()
    unfolded: set[int] = set()
    # Not recursive: a chain of thousands of datasets is a legal pipeline.
    waiting = [(top, "", at == len(tops) - 1) for at, top in enumerate(tops)][::-1]
    while waiting:
        position, indent, last = waiting.pop()
        below = sources[position]
        again = position in unfolded and bool(below)
        branch = "└── " if last else "├── "
        lines.append(f"{indent}{branch}{_line(graph.nodes[position], again=again)}")
        if again:
            continue
        unfolded.add(position)
        deeper = indent + ("    " if last else "│   ")
        waiting += [(s, deeper, at == len(below) - 1) for at, s in enumerate(below)][::-1]
    blue, gray = MARK_SIGNS[Mark.BLUE], MARK_SIGNS[Mark.GRAY]
    lines.append(f"{blue} a JobSpec on {graph.primary}   {gray} none there")
    return "\n".join(lines) + "\n"


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart, left to right."""
    return "\n".join(_mermaid_lines(graph)) + "\n"


def to_dot(graph: Graph) -> str:
    """A Graphviz digraph, left to right."""
    return "\n".join(_dot_lines(graph)) + "\n"


def _line(node: Node, *, again: bool) -> str:
    kind = "" if node.kind is DatasetKind.TABLE else f" [{node.kind}]"
    told = "(above)" if again else node.status
    return f"{MARK_SIGNS[node.mark]} {node.dataset}{kind}  on {node.place}  {told}"


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
    """Mermaid reads `#name;` and `#number;` inside quotes, and HTML, as characters."""
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
    """A quoted string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
