"""The graph of a plan or a build: datasets on branches, with edges from inputs to outputs; pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headgate.model.ids import TransactionId
from headgate.model.nouns import DatasetKind, DatasetName, JobState, Json, as_json

if TYPE_CHECKING:
    from headgate.model.freshness import Decision, PlannedInput, Reason


class Mark(enum.StrEnum):
    """Blue if the primary branch has a JobSpec that makes the dataset, else gray."""

    BLUE = "blue"
    GRAY = "gray"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A dataset on the branch that shows it, or will show it; without a job it is only read."""

    dataset: DatasetName
    branch: str
    # Set if an input names its own transaction, which may not be the branch's view.
    transaction: TransactionId | None = None
    kind: DatasetKind
    mark: Mark
    job: str | None = None
    jobspec_branch: str | None = None
    state: JobState | None = None
    reason: Reason | None = None
    adopted_from: str | None = None

    @property
    def place(self) -> str:
        """The branch, and the transaction if there is one, as text."""
        return f"{self.branch} @ {self.transaction}" if self.transaction else self.branch

    @property
    def status(self) -> str:
        """The state of its job as text."""
        if self.state is None or self.reason is None:
            return "read"
        same = self.state.value == self.reason.value
        text = self.state.value if same else f"{self.state} ({self.reason})"
        return f"{text} from {self.adopted_from}" if self.adopted_from else text


@dataclass(frozen=True, kw_only=True)
class Edge:
    """The node at `source` is an input of the one at `target`; both are positions."""

    source: int
    target: int


@dataclass(frozen=True, kw_only=True)
class Graph:
    chain: tuple[str, ...]
    # The branch by whose JobSpecs datasets are marked.
    primary: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def title(self) -> str:
        return " > ".join(self.chain)

    def sources_of(self) -> dict[int, list[int]]:
        """Return the inputs of each node, by position."""
        found: dict[int, list[int]] = {position: [] for position in range(len(self.nodes))}
        for edge in self.edges:
            found[edge.target].append(edge.source)
        return found

    def to_json(self) -> Json:
        return as_json(self)


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """Facts that a graph shows and that decisions do not have."""

    chain: tuple[str, ...]
    primary: str
    kinds: Mapping[DatasetName, DatasetKind]
    # Of fresh outputs: the branch that the chain resolves to.
    shown_on: Mapping[DatasetName, str]
    # Datasets with a JobSpec on the primary branch.
    blue: Collection[DatasetName]


_Key = tuple[DatasetName, str, TransactionId | None]


def make_graph(
    decisions: Sequence[Decision], states: Sequence[JobState], facts: GraphFacts
) -> Graph:
    """Return a node for each dataset on a branch, in dependency order, and an edge per input."""
    # A dict keeps the position of a node that is first read and later found to be made here.
    nodes: dict[_Key, Node] = {}
    edges: dict[tuple[_Key, _Key], None] = {}
    for decision, state in zip(decisions, states, strict=True):
        sources = [_read(given, decision, nodes, facts) for given in decision.inputs]
        for name in decision.job.outputs:
            node = _made(name, decision, state, facts)
            key = (name, node.branch, None)
            nodes[key] = node
            edges |= {(source, key): None for source in sources}
    place = {key: position for position, key in enumerate(nodes)}
    return Graph(
        chain=facts.chain,
        primary=facts.primary,
        nodes=tuple(nodes.values()),
        edges=tuple(Edge(source=place[source], target=place[made]) for source, made in edges),
    )


def add_views(graph: Graph, views: Mapping[Node, Collection[Node]]) -> Graph:
    """Return the graph with these views, each with the datasets that its query reads.

    A dataset that the graph has on the same branch, or makes, keeps its node.
    """
    nodes = list(graph.nodes)
    plain = {position: node for position, node in enumerate(nodes) if node.transaction is None}
    made = {node.dataset: position for position, node in plain.items() if node.job}
    places = {(node.dataset, node.branch): position for position, node in plain.items()}

    def place(node: Node) -> int:
        position = made.get(node.dataset, places.get((node.dataset, node.branch), len(nodes)))
        if position == len(nodes):
            places[node.dataset, node.branch] = position
            nodes.append(node)
        return position

    edges = dict.fromkeys(graph.edges)
    for view, sources in views.items():
        read = [place(source) for source in sources]
        target = place(view)
        edges |= {Edge(source=source, target=target): None for source in read}
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))


def _read(
    given: PlannedInput, decision: Decision, nodes: dict[_Key, Node], facts: GraphFacts
) -> _Key:
    declared = next(spec for spec in decision.job.spec.inputs if spec.name == given.name)
    key = (given.dataset, given.branch, declared.transaction)
    if key not in nodes:
        nodes[key] = Node(
            dataset=given.dataset,
            branch=given.branch,
            transaction=declared.transaction,
            kind=facts.kinds.get(given.dataset, DatasetKind.TABLE),
            mark=_mark(given.dataset, facts),
        )
    return key


def _made(name: DatasetName, decision: Decision, state: JobState, facts: GraphFacts) -> Node:
    build_branch = facts.chain[0]
    kinds = {output.dataset: output.kind for output in decision.job.spec.outputs}
    return Node(
        dataset=name,
        branch=facts.shown_on.get(name, build_branch) if decision.is_skipped else build_branch,
        kind=kinds[name],
        mark=_mark(name, facts),
        job=decision.job.spec.title,
        jobspec_branch=decision.job.jobspec_branch,
        state=state,
        reason=decision.reason,
        adopted_from=decision.candidate.branch if decision.candidate else None,
    )


def _mark(name: DatasetName, facts: GraphFacts) -> Mark:
    return Mark.BLUE if name in facts.blue else Mark.GRAY
