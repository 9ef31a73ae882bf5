"""Rules of rows at the commit of a build: its tables bind it as they bind every engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.builds.attempt import JobResult, JobWork, Progress
from headgate.catalog.consistency import check_rules
from headgate.catalog.records import load_transaction, open_transactions_of
from headgate.catalog.transactions import stage_version
from headgate.errors import ConstraintsViolated
from headgate.model.ids import TransactionId, mint_content, mint_version
from headgate.model.nouns import Version
from headgate.model.rules import RULES_FACT
from headgate.rows.working_set import now_ms
from headgate.store.embedded import Store
from headgate.tables.scan import TableScan
from headgate.tables.snapshot_writer import FileChange, next_metadata, write_rows
from tests.support.jobspecs import spec
from tests.support.pipelines import build, publish, states
from tests.support.rows import GRAPH, KNOWS, PERSON, apply_text, ids_of, insert_people
from tests.support.stores import new_store

_FLAGGING = GRAPH.replace('key = ["id"]', 'key = ["id"]\nenforce = "flag"')


@dataclass(kw_only=True)
class RowJobs:
    """Jobs without Spark: each appends rows to its outputs, as an engine that knows no rules."""

    store: Store
    rows: dict[str, Sequence[dict[str, Any]]] = field(default_factory=dict)

    def expect(self, count: int) -> None:
        """Accept any number of jobs."""

    def start(self, work: JobWork) -> _RowAttempt:
        return _RowAttempt(self, work)


@dataclass(frozen=True)
class _RowAttempt:
    jobs: RowJobs
    work: JobWork

    def run(self, progress: Progress) -> JobResult:
        for name, id in self.work.outputs.items():
            self._append(str(name), id)
        return JobResult(succeeded=True, written=tuple(str(name) for name in self.work.outputs))

    def stop(self, reason: str) -> None:
        """Do nothing: no attempt takes long."""

    def _append(self, name: str, id: TransactionId) -> None:
        store = self.jobs.store
        opened = store.database.read(lambda c: load_transaction(c, id))
        assert opened.parent is not None
        parent = opened.parent
        shown = store.database.read(lambda c: load_transaction(c, parent)).version
        assert shown is not None
        base = store.tables.read(shown.location)
        scan = TableScan(base, {})
        rows = pa.Table.from_pylist(list(self.jobs.rows[name]), schema=scan.schema)
        change = FileChange(operation="append", added=write_rows(scan, rows))
        metadata = next_metadata(scan, change, now_ms=now_ms())
        stored = store.tables.write(opened.dataset_id, metadata, base=base.metadata)
        version = Version(id=mint_version(), location=stored.location, content_id=mint_content())
        stage_version(store.database, id, version, expected=None, attempt=self.work.attempt)


def people(*ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "name": id.upper(), "age": 7} for id in ids]


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    """A store with the tables of a graph, and two people, which a job produces."""
    with new_store(made_catalog_url, tmp_path) as made:
        apply_text(made, GRAPH)
        made.mutate("master", insert_people("ana", "bo"))
        publish(made, "master", spec(PERSON), spec(KNOWS))
        yield made


def test_build_of_rows_that_keep_the_rules_is_published_as_validated(store: Store) -> None:
    outcome = build(store, PERSON, jobs=RowJobs(store=store, rows={PERSON: people("cy")}))
    assert states(outcome) == {PERSON: "succeeded"}
    assert ids_of(store, PERSON) == ["ana", "bo", "cy"]
    newest = store.dataset(PERSON).branch("master").history()[0]
    assert newest.provenance[RULES_FACT] == {"state": "hold"}
    assert newest.provenance["build"] == outcome.id


def test_build_of_rows_that_break_a_rule_fails_and_names_them(store: Store) -> None:
    before = store.dataset(PERSON).branch("master").load().view
    jobs = RowJobs(store=store, rows={PERSON: people("cy", "ana")})
    outcome = build(store, PERSON, jobs=jobs)
    assert states(outcome) == {PERSON: "failed"}
    assert "graph.person: the key id = 'ana' occurs 2 times" in str(outcome.jobs[0].error)
    assert store.dataset(PERSON).branch("master").load().view == before
    jobs.rows = {PERSON: people("cy")}
    assert states(build(store, PERSON, jobs=jobs)) == {PERSON: "succeeded"}


def test_atomic_build_of_rows_that_break_a_rule_publishes_nothing(store: Store) -> None:
    jobs = RowJobs(store=store, rows={PERSON: people("ana"), KNOWS: []})
    with pytest.raises(ConstraintsViolated, match="the key id = 'ana' occurs 2 times"):
        build(store, [PERSON, KNOWS], jobs=jobs, atomic=True)
    assert ids_of(store, PERSON) == ["ana", "bo"]
    assert store.database.read(lambda c: open_transactions_of(c)) == []
    jobs.rows = {PERSON: people("cy"), KNOWS: []}
    assert set(states(build(store, [PERSON, KNOWS], jobs=jobs, atomic=True)).values()) == {
        "succeeded"
    }


def test_build_that_breaks_a_reference_of_its_other_output_fails(store: Store) -> None:
    publish(store, "master", spec(f"{PERSON},{KNOWS}"))
    edges = [{"id": 1, "src": "cy", "dst": "eve"}]
    jobs = RowJobs(store=store, rows={PERSON: people("cy"), KNOWS: edges})
    outcome = build(store, PERSON, jobs=jobs)
    assert "dst = 'eve' refers to no row" in str([job.error for job in outcome.jobs])
    jobs.rows = {PERSON: people("cy", "eve"), KNOWS: edges}
    assert set(states(build(store, PERSON, jobs=jobs)).values()) == {"succeeded"}
    assert ids_of(store, KNOWS) == [1]


def test_build_of_a_table_that_flags_is_published_with_its_violations(store: Store) -> None:
    apply_text(store, _FLAGGING)
    jobs = RowJobs(store=store, rows={PERSON: people("ana")})
    assert states(build(store, PERSON, jobs=jobs)) == {PERSON: "succeeded"}
    assert ids_of(store, PERSON) == ["ana", "ana", "bo"]
    [finding] = store.database.read(lambda c: [*check_rules(c)])
    assert finding.where == f"{PERSON}@master"
    # Of a later build that writes other rows, too.
    jobs.rows = {PERSON: people("cy")}
    assert states(build(store, PERSON, jobs=jobs, force=True)) == {PERSON: "succeeded"}
    assert len(store.database.read(lambda c: [*check_rules(c)])) == 1


def test_adopted_output_keeps_the_flag_of_its_rows(store: Store) -> None:
    apply_text(store, _FLAGGING)
    jobs = RowJobs(store=store, rows={PERSON: people("ana")})
    build(store, PERSON, jobs=jobs, branch="feature", fallback=["master"])
    outcome = build(store, PERSON, jobs=RowJobs(store=store))
    assert states(outcome) == {PERSON: "adopted"}
    newest = store.dataset(PERSON).branch("master").history()[0]
    assert newest.provenance["adopted_from"]["branch"] == "feature"
    assert newest.provenance[RULES_FACT]["state"] == "flagged"
    store.mutate("master", insert_people("cy"))
    [finding] = store.database.read(
        lambda c: [one for one in check_rules(c) if one.where.endswith("@master")]
    )
    assert "the key id = 'ana' occurs 2 times" in finding.what
