"""State that the endpoint keeps about its clients."""

from __future__ import annotations

import pytest

from headgate.errors import IdempotencyKeyReused, InvalidName
from headgate.iceberg.app import RecordedRefusals, find_route
from headgate.iceberg.commits import is_replacing
from headgate.iceberg.service import LastRead, Reply, ServedVersions, parse_levels
from headgate.iceberg.table_catalog import Idempotency
from headgate.model.names import DatasetName
from tests.support.metadata import change, commit, point, table

ORDERS = DatasetName(namespace=("sales",), name="orders")


def test_refresh_of_a_client_that_marks_its_loads_is_not_a_read() -> None:
    served = ServedVersions()
    served.note_load("c", ORDERS, "v1", marked=True)
    served.note_load("c", ORDERS, "v2", marked=False)
    assert served.find("c", ORDERS) == LastRead(location="v1", marks_loads=True)


def test_load_of_a_client_that_marks_nothing_is_a_read() -> None:
    served = ServedVersions()
    client = served.new_client("PyIceberg 0.9.0")
    served.note_load(client, ORDERS, "v1", marked=False)
    served.note_load(client, ORDERS, "v2", marked=False)
    assert served.find(client, ORDERS) == LastRead(location="v2", marks_loads=False)


def test_refresh_of_a_client_of_another_server_or_of_java_is_not_a_read() -> None:
    served = ServedVersions()
    for client in (ServedVersions().new_client(), served.new_client("Apache Iceberg 1.12.0")):
        served.note_load(client, ORDERS, "v1", marked=False)
        assert served.find(client, ORDERS) is None
        served.note_commit(client, ORDERS, "v1")
        served.note_load(client, ORDERS, "v2", marked=False)
        assert served.find(client, ORDERS) == LastRead(location="v1", marks_loads=False)


def test_commit_is_known_to_the_client_that_made_it_only() -> None:
    served = ServedVersions()
    served.note_load("a", ORDERS, "v1", marked=True)
    served.note_load("b", ORDERS, "v1", marked=True)
    served.note_commit("a", ORDERS, "v2")
    assert served.find("a", ORDERS) == LastRead(location="v2", marks_loads=True)
    assert served.find("b", ORDERS) == LastRead(location="v1", marks_loads=True)


def test_refused_snapshot_is_remembered_until_the_next_read() -> None:
    served = ServedVersions()
    served.note_load("c", ORDERS, "v1", marked=True)
    served.note_refusal("c", ORDERS, "v2", frozenset({7}))
    read = served.find("c", ORDERS)
    assert read == LastRead(location="v2", marks_loads=True, refused=frozenset({7}))
    served.note_load("c", ORDERS, "v2", marked=True)
    assert served.find("c", ORDERS) == LastRead(location="v2", marks_loads=True)


def test_memory_forgets_who_was_served_longest_ago() -> None:
    served = ServedVersions(limit=1)
    served.note_load("a", ORDERS, "v1", marked=True)
    served.note_load("b", ORDERS, "v1", marked=True)
    assert served.find("a", ORDERS) is None


@pytest.mark.parametrize(
    ("op", "removed", "replacing"),
    [
        ("append", "0", False),
        ("overwrite", "0", False),
        ("overwrite", "3", True),
        ("delete", "3", False),
    ],
)
def test_overwrite_that_removes_files_is_replacing(op: str, removed: str, replacing: bool) -> None:
    base = table(*commit(1))
    made = change(base, *commit(2, parent=1, op=op, summary={"deleted-data-files": removed}))
    assert is_replacing(base, made) is replacing


def test_replaced_and_rolled_back_tables_are_replacing() -> None:
    base = change(table(*commit(1)), *commit(2, parent=1))
    assert is_replacing(base, change(base, point(1)))
    assert is_replacing(base, change(base, {"action": "remove-snapshot-ref", "ref-name": "main"}))


def test_refusal_is_repeated_for_its_key_and_another_request_is_invalid() -> None:
    refusals, reply = RecordedRefusals(), Reply(status=409)
    key = Idempotency(key="k", request_hash="h")
    assert refusals.find("ana", key) is None
    refusals.keep("ana", key, reply)
    assert refusals.find("ana", key) is reply
    assert refusals.find("bob", key) is None
    with pytest.raises(IdempotencyKeyReused):
        refusals.find("ana", Idempotency(key="k", request_hash="other"))


def test_route_is_found_on_the_raw_path() -> None:
    found = find_route("GET", ("namespaces", "a%1Fb", "tables", "x%2Fy"))
    assert found is not None
    assert found[1] == {"namespace": "a%1Fb", "table": "x%2Fy"}
    assert find_route("PATCH", ("namespaces",)) is None


def test_levels_of_a_namespace_are_checked_one_by_one() -> None:
    assert parse_levels("a\x1fb") == ("a", "b")
    with pytest.raises(InvalidName):
        parse_levels("a\x1f")
