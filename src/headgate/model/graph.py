"""The graph of a plan or a build: datasets on branches, and what is made of what; pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.model.freshness import Decided, Decision, PlannedInput, Reason
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, JobState


class Mark(enum.StrEnum):
    """Whether the primary branch has a JobSpec that makes a dataset: blue if so, else gray."""

    BLUE = "blue"
    GRAY = "gray"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A dataset on the branch that shows it, or will; without a job it is only read."""

    dataset: DatasetName
    branch: str
    kind: DatasetKind
    mark: Mark
    # Set where an input names its own transaction, which may not be the branch's view.
    transaction: TransactionId | None = None
    job: str | None = None
    jobspec_branch: str | None = None
    state: JobState | None = None
    reason: Reason | None = None
    adopted_from: str | None = None

    @property
    def place(self) -> str:
        """Where it is read or written, for people."""
        return f"{self.branch} @ {self.transaction}" if self.transaction else self.branch

    @property
    def status(self) -> str:
        """What happens to it, for people."""
        if self.state is None or self.reason is None:
            return "read"
        same = self.state.value == self.reason.value
        told = self.state.value if same else f"{self.state} ({self.reason})"
        return f"{told} from {self.adopted_from}" if self.adopted_from else told

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.dataset),
            "branch": self.branch,
            "transaction": self.transaction,
            "kind": self.kind.value,
            "mark": self.mark.value,
            "job": self.job,
            "jobspec_branch": self.jobspec_branch,
            "state": self.state.value if self.state else None,
            "reason": self.reason.value if self.reason else None,
            "adopted_from": self.adopted_from,
        }


@dataclass(frozen=True, kw_only=True)
class Edge:
    """The node at `target` is made of the one at `source`; both are positions."""

    source: int
    target: int

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target}


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
        """Of each node, what it is made of."""
        found: dict[int, list[int]] = {position: [] for position in range(len(self.nodes))}
        for edge in self.edges:
            found[edge.target].append(edge.source)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": list(self.chain),
            "primary": self.primary,
            "nodes": [node.to_json() for node in self.nodes],
            "edges": [edge.to_json() for edge in self.edges],
        }


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """What a graph shows and decisions do not know."""

    chain: tuple[str, ...]
    primary: str
    kinds: Mapping[DatasetName, DatasetKind]
    # Of outputs that stay as they are: the branch that the chain finds them on.
    shown_on: Mapping[DatasetName, str]
    # Datasets with a JobSpec on the primary branch.
    blue: Collection[DatasetName]


_Key = tuple[DatasetName, str, TransactionId | None]


def make_graph(
    decisions: Sequence[Decision], states: Sequence[JobState], facts: GraphFacts
) -> Graph:
    """One node for each dataset on a branch, in the order of dependency; edges along inputs."""
    # A dict keeps the place of what is first only read and then found to be made here.
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
    fresh = decision.state is Decided.FRESH
    kinds = {output.dataset: output.kind for output in decision.job.spec.outputs}
    return Node(
        dataset=name,
        branch=facts.shown_on.get(name, facts.chain[0]) if fresh else facts.chain[0],
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
