"""The graph of the tests in plain Python: the expected result of a script of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

People: TypeAlias = tuple[tuple[str, int], ...]
Edges: TypeAlias = tuple[tuple[int, str, str], ...]

_ROWS_PER_SOURCE = 3


@dataclass(frozen=True, kw_only=True)
class Graph:
    people: People = ()
    edges: Edges = ()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a script, and its effect on a graph."""

    kind: str
    person: str = "a"
    other: str = "a"
    number: int = 0

    @property
    def guards(self) -> bool:
        return self.kind in {"update", "delete", "unlink"}

    @property
    def sql(self) -> str:
        match self.kind:
            case "insert":
                return f"insert into graph.person (id, age) values ('{self.person}', {self.number})"
            case "upsert":
                return f"upsert into graph.person (id, age) values ('{self.person}', {self.number})"
            case "update":
                return (
                    f"update graph.person set age = age + {self.number} where id = '{self.person}'"
                )
            case "delete":
                return f"delete from graph.person where id = '{self.person}'"
            case "link":
                return (
                    f"insert into graph.knows values ({self.number}, '{self.person}', "
                    f"'{self.other}')"
                )
        return f"delete from graph.knows where src = '{self.person}'"

    def apply(self, graph: Graph) -> Graph:
        here = [row for row in graph.people if row[0] == self.person]
        rest = tuple(row for row in graph.people if row[0] != self.person)
        edges = tuple(row for row in graph.edges if row[1] != self.person)
        match self.kind:
            case "insert":
                return replace(graph, people=(*graph.people, (self.person, self.number)))
            case "upsert":
                kept = tuple((id, self.number) for id, _ in here) or ((self.person, self.number),)
                return replace(graph, people=(*rest, *kept))
            case "update":
                changed = tuple((id, age + self.number) for id, age in here)
                return replace(graph, people=(*rest, *changed))
            case "delete":
                return Graph(people=rest, edges=edges) if here else graph
            case "link":
                return replace(graph, edges=(*graph.edges, (self.number, self.person, self.other)))
        return replace(graph, edges=edges)


@dataclass(frozen=True, kw_only=True)
class Script:
    statements: Sequence[Statement] = field(default_factory=tuple)

    @property
    def sql(self) -> str:
        return ";\n".join(statement.sql for statement in self.statements)

    @property
    def guards(self) -> bool:
        return any(statement.guards for statement in self.statements)

    def apply(self, graph: Graph) -> Graph:
        for statement in self.statements:
            graph = statement.apply(graph)
        return graph

    def met(self, graph: Graph) -> object:
        """Return the committed rows that it removes, by table; none for an unchanged table."""
        after = self.apply(graph)
        pairs = {"people": (graph.people, after.people), "edges": (graph.edges, after.edges)}
        return {
            name: Counter(before) - Counter(now)
            for name, (before, now) in pairs.items()
            if Counter(before) != Counter(now)
        }


def is_allowed(graph: Graph) -> bool:
    """Return True if the graph satisfies the schema of the tests."""
    ids = [id for id, _ in graph.people]
    numbers = [number for number, _, _ in graph.edges]
    pairs = [(src, dst) for _, src, dst in graph.edges]
    sources = Counter(src for _, src, _ in graph.edges)
    return (
        len(set(ids)) == len(ids)
        and len(set(numbers)) == len(numbers)
        and len(set(pairs)) == len(pairs)
        and all(src in ids and dst in ids for src, dst in pairs)
        and all(count <= _ROWS_PER_SOURCE for count in sources.values())
    )
