"""Random scripts of two writers against a model in plain Python: rows and conflicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import ConstraintsViolated, RowsChanged
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at
from tests.support.rows import KNOWS, PERSON, graph_store, rows_of
from tests.support.rows_model import Graph, Script, Statement, is_allowed

_KINDS = ("insert", "upsert", "update", "delete", "link", "unlink")
_statements = st.builds(
    Statement,
    kind=st.sampled_from(_KINDS),
    person=st.sampled_from("abc"),
    other=st.sampled_from("abc"),
    number=st.integers(min_value=0, max_value=4),
)
_scripts = st.builds(Script, statements=st.lists(_statements, min_size=1, max_size=5))


def _shown(store: Store, branch: str) -> tuple[list[Any], list[Any]]:
    people = [(row["id"], row["age"]) for row in rows_of(store, PERSON, branch)]
    edges = [(row["id"], row["src"], row["dst"]) for row in rows_of(store, KNOWS, branch)]
    return sorted(people), sorted(edges)


def _try(store: Store, branch: str, script: Script, graph: Graph) -> Graph:
    """Run the script on a store and in the model, which must agree."""
    wanted = script.apply(graph)
    try:
        store.mutate(branch, script.sql)
    except ConstraintsViolated:
        assert not is_allowed(wanted), script.sql
        return graph
    assert is_allowed(wanted), script.sql
    return wanted


def _try_beside(
    store: Store, branch: str, script: Script, graph: Graph, meanwhile: Callable[[], Graph]
) -> Graph:
    """Run the script; another writer publishes between its staging and its publication."""
    after = graph

    def interrupt() -> None:
        nonlocal after
        after = meanwhile()

    try:
        with calling_at(Failpoint.MUTATION_STAGED, interrupt):
            store.mutate(branch, script.sql)
    except ConstraintsViolated:
        assert not is_allowed(script.apply(after)), script.sql
        return after
    except RowsChanged:
        assert script.guards and script.met(graph) != script.met(after), script.sql
        return after
    moved = after != graph
    assert not (moved and script.guards and script.met(graph) != script.met(after)), script.sql
    assert is_allowed(script.apply(after)), script.sql
    return script.apply(after)


def test_rows_of_random_scripts_are_those_of_the_model(
    made_catalog_url: str, tmp_path: Path
) -> None:
    numbers = itertools.count()
    with graph_store(made_catalog_url, tmp_path) as store:

        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(first=st.lists(_scripts, min_size=1, max_size=3), mine=_scripts, theirs=_scripts)
        def check(first: list[Script], mine: Script, theirs: Script) -> None:
            branch = f"try-{next(numbers)}"
            for name in (PERSON, KNOWS):
                store.dataset(name).branch(branch).create(parent="master")
            graph = Graph()
            for script in first:
                graph = _try(store, branch, script, graph)
            graph = _try_beside(
                store, branch, mine, graph, lambda: _try(store, branch, theirs, graph)
            )
            assert _shown(store, branch) == (sorted(graph.people), sorted(graph.edges))

        check()
