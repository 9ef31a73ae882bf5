"""A load by Spark as an operation: conditions, protection, idempotency keys, interruption."""

from __future__ import annotations

import pytest

from headgate.catalog.operations import find_operations
from headgate.errors import BranchProtected, Invalid, OpenTransactionAlreadyExists, ViewConflict
from headgate.model.failpoints import Failpoint
from headgate.testing.failpoints import calling_at
from tests.support.engines import SPARK, Engines
from tests.support.rows import KNOWS, PERSON, publications

pytestmark = pytest.mark.xdist_group("spark")


def test_load_by_spark_with_a_view_that_is_gone_is_a_conflict_and_opens_nothing(
    engines: Engines,
) -> None:
    rows = engines.file("rows.csv", [{"id": "x"}])
    seen = engines.store.dataset(PERSON).branch(SPARK).load().view
    engines.store.mutate(SPARK, "insert into graph.person (id) values ('z')")
    count = len(publications(engines.store))
    with pytest.raises(ViewConflict) as refused:
        engines.load(SPARK, {PERSON: rows}, "append", if_head={PERSON: seen})
    assert refused.value.facts["manifest_conflict"]["expected"] == seen
    assert len(publications(engines.store)) == count
    view = engines.store.dataset(KNOWS).branch(SPARK).load().view
    now = engines.store.dataset(PERSON).branch(SPARK).load().view
    add = "insert into graph.knows values (1, 'a', 'b')"
    with (
        calling_at(Failpoint.MUTATION_STAGED, lambda: _mutate(engines, add)),
        pytest.raises(ViewConflict),
    ):
        engines.load(SPARK, {PERSON: rows}, "append", if_head={PERSON: now, KNOWS: view})
    assert engines.load(SPARK, {PERSON: rows}, "append", if_head={PERSON: now}).publication


def _mutate(engines: Engines, sql: str) -> None:
    engines.store.mutate(SPARK, sql)


def test_load_by_spark_into_a_protected_branch_is_refused_before_any_work(
    engines: Engines,
) -> None:
    engines.store.protect(SPARK)
    with pytest.raises(BranchProtected):
        engines.load(SPARK, {PERSON: "nowhere.csv"}, "append", may_write_protected=False)
    assert not engines.store.dataset(PERSON).branch(SPARK).load().is_open


def test_load_by_spark_with_a_key_is_in_progress_then_done_once(engines: Engines) -> None:
    rows = engines.file(
        "rows.csv",
        [
            {"id": "x"},
            {
                "id": "a",
            },
        ],
    )
    seen = []

    def look() -> None:
        seen.append(engines.store.status("k-1", branch=SPARK, kind="load")["state"])

    with calling_at(Failpoint.MUTATION_STAGED, look):
        first = engines.load(SPARK, {PERSON: rows}, "merge", idempotency_key="k-1")
    status = engines.store.status("k-1", branch=SPARK, kind="load")
    assert (seen, status["state"]) == (["in_progress"], "committed")
    assert status["publication"] == first.publication
    rows.unlink()
    again = engines.load(SPARK, {PERSON: rows}, "merge", idempotency_key="k-1")
    assert (again.replayed, again.publication, again.counts) == (
        True,
        first.publication,
        first.counts,
    )
    with pytest.raises(Invalid):
        engines.load(SPARK, {PERSON: rows}, "append", idempotency_key="k-1")


def test_load_by_spark_that_is_refused_frees_its_key(engines: Engines) -> None:
    bad = engines.file("rows.csv", [{"id": "x", "age": "old"}])
    with pytest.raises(Invalid):
        engines.load(SPARK, {PERSON: bad}, "merge", idempotency_key="k-2")
    good = engines.file("rows.csv", [{"id": "x", "age": 3}])
    done = engines.load(SPARK, {PERSON: good}, "merge", idempotency_key="k-2")
    assert done.counts[PERSON].inserted == 1 and not done.replayed


def test_load_by_spark_that_is_interrupted_leaves_nothing_open_and_no_word_of_its_key(
    engines: Engines,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rows = engines.file("rows.csv", [{"id": "x"}])
    count = len(publications(engines.store))
    with calling_at(Failpoint.MUTATION_STAGED, interrupt), pytest.raises(KeyboardInterrupt):
        engines.load(SPARK, {PERSON: rows}, "append", idempotency_key="k-3")
    assert not engines.store.dataset(PERSON).branch(SPARK).load().is_open
    assert engines.store.database.read(lambda c: find_operations(c, "k-3")) == []
    assert len(publications(engines.store)) == count
    assert engines.load(SPARK, {PERSON: rows}, "append", idempotency_key="k-3").publication


def test_load_by_spark_waits_for_whoever_holds_a_table_open_until_its_timeout(
    engines: Engines,
) -> None:
    rows = engines.file("rows.csv", [{"id": "x"}])
    held = engines.store.dataset(PERSON).branch(SPARK).transaction("APPEND")
    with held, pytest.raises(OpenTransactionAlreadyExists):
        engines.load(SPARK, {PERSON: rows}, "append", timeout_seconds=0)
    assert [row["id"] for row in engines.rows(PERSON)] == ["a", "b"]
