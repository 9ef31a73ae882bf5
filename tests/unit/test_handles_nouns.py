"""Every noun has one JSON shape, which scripts of users rely on."""

from __future__ import annotations

from dataclasses import replace

from headgate.catalog.records import Unit
from headgate.catalog.recovery import Recovered
from headgate.files.objects import Digest
from headgate.files.tree import Entry, Mode, empty_directory
from headgate.model.changes import Receipt
from headgate.model.ids import (
    BranchId,
    ContentId,
    DatasetId,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    UnitId,
    VersionId,
)
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import (
    Dataset,
    DatasetKind,
    MoveRecord,
    Publication,
    PublicationKind,
    Tag,
    TransactionState,
    Version,
)
from headgate.store import documents
from tests.support.nouns import a_branch, a_transaction

NAME = parse_dataset_name("sales.orders")
AT = Instant(1_700_000_000_000_001)
AT_TEXT = "2023-11-14T22:13:20.000001Z"


def test_dataset_json_lists_the_names_of_its_own_branches() -> None:
    dataset = Dataset(
        id=DatasetId("d-1"), name=NAME, kind=DatasetKind.FILES, owned=True, created_at=AT
    )
    other = replace(a_branch("elsewhere"), dataset_id=DatasetId("d-2"))
    branches = [a_branch("feature"), other, a_branch("master")]
    assert documents.dataset_json(dataset, branches) == {
        "dataset": "sales.orders",
        "kind": "files",
        "branches": ["feature", "master"],
    }


def test_branch_json_with_an_open_head_says_so() -> None:
    branch = a_branch("feature", parent="master", head="t-2", view="t-1")
    assert documents.BRANCH.json(branch) == {
        "dataset": "sales.orders",
        "name": "feature",
        "parent": "master",
        "head": "t-2",
        "view": "t-1",
        "open": True,
    }


def test_branch_json_of_an_empty_root_has_nulls() -> None:
    shown = documents.BRANCH.json(a_branch("master"))
    assert (shown["parent"], shown["head"], shown["view"], shown["open"]) == (
        None,
        None,
        None,
        False,
    )


def test_transaction_json_of_an_open_one_has_times_with_microseconds() -> None:
    assert documents.TRANSACTION.json(a_transaction("t-1", opened_at=AT)) == {
        "transaction": "t-1",
        "dataset": "sales.orders",
        "branch": "master",
        "type": "UPDATE",
        "state": "OPEN",
        "parent": None,
        "actor": "ana",
        "opened_at": AT_TEXT,
        "closed_at": None,
        "version": None,
    }


def test_transaction_json_of_a_committed_one_names_parent_and_version() -> None:
    version = Version(id=VersionId("v-1"), location="l", content_id=ContentId("c"))
    closed = replace(
        a_transaction("t-2", state=TransactionState.COMMITTED),
        version=version,
        parent=TransactionId("t-1"),
        closed_at=Instant(AT + 1),
    )
    shown = documents.TRANSACTION.json(closed)
    assert (shown["parent"], shown["version"]) == ("t-1", "v-1")
    assert shown["closed_at"] == "2023-11-14T22:13:20.000002Z"


def test_unit_json_holds_its_transactions() -> None:
    unit = Unit(
        id=UnitId("u-1"),
        branch="feature",
        actor="ana",
        state=TransactionState.OPEN,
        lease_seconds=900,
        lease_until=AT,
        transactions=(),
    )
    shown = documents.unit_json(unit, [a_transaction("t-1")])
    assert (shown["unit"], shown["branch"], shown["state"]) == ("u-1", "feature", "OPEN")
    assert [t["transaction"] for t in shown["transactions"]] == ["t-1"]


def test_publication_json_lists_moves_from_and_to() -> None:
    move = MoveRecord(
        dataset=NAME,
        branch_id=BranchId("b-1"),
        branch="master",
        from_transaction=None,
        to_transaction=TransactionId("t-1"),
    )
    publication = Publication(
        number=PublicationNumber(7),
        at=AT,
        actor="ana",
        kind=PublicationKind.COMMIT,
        operation=OperationId("o-1"),
        moves=(move,),
    )
    assert documents.PUBLICATION.json(publication) == {
        "publication": 7,
        "kind": "commit",
        "actor": "ana",
        "at": AT_TEXT,
        "operation": "o-1",
        "moves": [{"dataset": "sales.orders", "branch": "master", "from": None, "to": "t-1"}],
    }


def test_unpublished_json_has_the_keys_of_a_publication_and_no_number() -> None:
    receipt = Receipt(operation=OperationId("o-1"), publication=None, at=AT, transactions={})
    shown = documents.unpublished_json(receipt, kind=PublicationKind.RESET, actor="ana")
    assert shown == {
        "publication": None,
        "kind": "reset",
        "actor": "ana",
        "at": AT_TEXT,
        "operation": "o-1",
        "moves": [],
    }


def test_event_json_has_the_keys_of_a_publication_and_its_own_facts() -> None:
    event = {
        "at": AT,
        "actor": "headgate:recovery",
        "kind": "abandoned",
        "dataset": "sales.orders",
        "branch": "master",
        "transaction": "t-1",
        "original_actor": "ana",
    }
    shown = documents.event_json(event)
    assert (shown["publication"], shown["operation"], shown["moves"]) == (None, None, [])
    assert (shown["at"], shown["kind"], shown["original_actor"]) == (AT_TEXT, "abandoned", "ana")


def test_audit_json_is_the_row_with_its_time_in_words() -> None:
    row = {"recovery": "r-1", "at": AT, "kind": "abort", "outcomes": []}
    assert documents.audit_json(row) == {**row, "at": AT_TEXT}


def test_file_json_of_a_file_and_of_an_empty_directory() -> None:
    entry = Entry(path="a/b.txt", mode=Mode.FILE, size=3, digest=Digest("ff"))
    assert documents.file_json(entry) == {"path": "a/b.txt", "size": 3, "digest": "ff"}
    assert documents.file_json(empty_directory("a/c")) == {
        "path": "a/c/",
        "size": 0,
        "digest": None,
    }


def test_tag_json_names_the_transaction() -> None:
    tag = Tag(dataset=NAME, name="q3", transaction=TransactionId("t-1"))
    assert documents.TAG.json(tag) == {
        "dataset": "sales.orders",
        "name": "q3",
        "transaction": "t-1",
    }


def test_recovery_json_has_all_four_lists() -> None:
    kept = [{"operation": "o-2", "why": "its owner is alive"}]
    done = Recovered(rolled_forward=["o-1"], aborted_transactions=["t-1"], kept=kept)
    assert documents.recovery_json(done) == {
        "rolled_forward": ["o-1"],
        "rolled_back": [],
        "aborted_transactions": ["t-1"],
        "kept": kept,
    }
