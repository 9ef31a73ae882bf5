"""One store with a branch for each load engine; the results of both must be equal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import HeadgateError
from headgate.rows.outcome import Outcome
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.store.rows import Rows
from tests.support.rows import graph_store, publications, rows_of
from tests.support.spark import bind

ARROW, SPARK = "master", "spark"


@dataclass(frozen=True)
class Engines:
    """A graph on two branches: `master` is loaded by Arrow, `spark` by Spark."""

    store: Store
    endpoint: EmbeddedEndpoint
    local: LocalSpark
    root: Path

    def session(self, context: str) -> Any:
        """Return a session of the shared Spark on a context of this store."""
        token = self.endpoint.issue("ana")
        return bind(self.local.session, uri=self.endpoint.url, context=context, token=token)

    def load(self, branch: str, given: Mapping[str, Any], mode: str, **how: Any) -> Outcome:
        rows = Rows(self.store, self.session)
        engine = "spark" if branch == SPARK else "arrow"
        return rows.load(branch, given, mode=mode, engine=engine, **how)

    def both(self, given: Mapping[str, Any], mode: str) -> list[Any]:
        """Return each engine's result: counts or the whole error, then the rows."""
        return [
            (self.said(branch, given, mode), {name: self.rows(name, branch) for name in given})
            for branch in (ARROW, SPARK)
        ]

    def same(self, given: Mapping[str, Any], mode: str) -> Any:
        """Return the result of both engines; assert that results and rows are equal."""
        by_arrow, by_spark = self.both(given, mode)
        assert by_spark == by_arrow
        return by_arrow[0]

    def said(self, branch: str, given: Mapping[str, Any], mode: str) -> Any:
        before = len(publications(self.store))
        try:
            outcome = self.load(branch, given, mode)
        except HeadgateError as error:
            assert len(publications(self.store)) == before
            return {"refused": error.code, **error.facts}
        return {name: counts.to_json() for name, counts in outcome.counts.items()}

    def rows(self, name: str, branch: str = SPARK) -> list[dict[str, Any]]:
        return rows_of(self.store, name, branch)

    def on_both(self, name: str) -> None:
        """Publish a table of `master` on the other branch too."""
        self.store.dataset(name).branch(SPARK).create(parent=ARROW)

    def file(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write a file of CSV or JSON lines, by the suffix of its name."""
        path = self.root / name
        lines = [json.dumps(row) for row in rows]
        if name.endswith(".csv"):
            columns = list(rows[0])
            lines = [",".join("" if r[c] is None else str(r[c]) for c in columns) for r in rows]
            lines = [",".join(columns), *lines]
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture
def engines(made_sqlite_url: str, tmp_path: Path, local_spark: LocalSpark) -> Iterator[Engines]:
    """Create the graph with two people, on a branch for each engine."""
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
        made = Engines(store, endpoint, local_spark, tmp_path)
        for name in ("graph.person", "graph.knows"):
            made.on_both(name)
        try:
            yield made
        finally:
            endpoint.stop()
