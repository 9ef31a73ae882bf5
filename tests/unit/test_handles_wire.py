"""A noun that is sent and received is unchanged."""

from __future__ import annotations

import json
from dataclasses import replace

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
    Version,
)
from headgate.store import documents
from headgate.store.documents import Json
from tests.support.nouns import a_branch, a_transaction

AT = Instant(1_700_000_000_000_001)
NAME = parse_dataset_name("sales.`or ders`")


def sent(noun: Json) -> Json:
    """Return the noun after a round trip through JSON."""
    arrived: Json = json.loads(json.dumps(noun))
    return arrived


def test_dataset_arrives_as_it_was() -> None:
    dataset = Dataset(
        id=DatasetId("d-1"), name=NAME, kind=DatasetKind.FILES, owned=False, created_at=AT
    )
    assert documents.DATASET.parse(sent(documents.dataset_wire(dataset, []))) == dataset


def test_branch_arrives_as_it_was() -> None:
    branch = replace(
        a_branch("feature", parent="master", head="t-2", view="t-1"), remembered_chain=("a", "b")
    )
    assert documents.BRANCH.parse(sent(documents.BRANCH.wire(branch))) == branch


def test_transaction_arrives_but_for_what_is_the_catalogs_own() -> None:
    version = Version(id=VersionId("v-1"), location="file:///x", content_id=ContentId("c-1"))
    transaction = replace(
        a_transaction("t-1"),
        version=version,
        unit=UnitId("u-1"),
        publication=PublicationNumber(7),
        lease_until=AT,
        provenance={"build": "b"},
    )
    expected = replace(transaction, jump=None, attempt=None)
    assert documents.TRANSACTION.parse(sent(documents.TRANSACTION.wire(transaction))) == expected
    bare = replace(expected, version=None, lease_until=None)
    assert documents.TRANSACTION.parse(sent(documents.TRANSACTION.wire(bare))) == bare


def test_publication_and_its_receipt_arrive_as_they_were() -> None:
    move = MoveRecord(
        dataset=NAME,
        branch_id=BranchId("b-1"),
        branch="master",
        from_transaction=None,
        to_transaction=TransactionId("t-1"),
    )
    publication = Publication(
        number=PublicationNumber(3),
        at=AT,
        actor="ana",
        kind=PublicationKind.COMMIT,
        operation=OperationId("o-1"),
        moves=(move,),
    )
    arrived = sent(documents.PUBLICATION.wire(publication))
    assert documents.PUBLICATION.parse(arrived) == publication
    receipt = documents.to_receipt(arrived, replayed=True)
    assert (receipt.publication, receipt.transactions) == (3, {"b-1": "t-1"})


def test_receipt_without_a_publication_arrives_as_it_was() -> None:
    receipt = Receipt(operation=OperationId("o-1"), publication=None, at=AT, transactions={})
    noun = documents.unpublished_json(receipt, kind=PublicationKind.RESET, actor="ana")
    assert documents.to_receipt(sent(noun), replayed=False) == receipt


def test_entry_of_each_mode_arrives_as_it_was() -> None:
    for entry in (
        Entry(path="a/b", mode=Mode.FILE, size=3, digest=Digest("0" * 64)),
        Entry(path="run", mode=Mode.EXECUTABLE, size=0, digest=Digest("1" * 64)),
        empty_directory("x/y"),
    ):
        assert documents.to_entry(sent(documents.entry_wire(entry))) == entry
