"""Commits, request by request."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import (
    AttemptSuperseded,
    CatalogUnavailable,
    HeadgateError,
    Mismatch,
    OutcomeUnknown,
    StorageUnavailable,
    ViewConflict,
)
from headgate.iceberg.service import RenderedTables
from headgate.model.nouns import TransactionType
from tests.support.iceberg import (
    RestClient,
    Served,
    at,
    create,
    error,
    load,
    send,
    table_change,
)
from tests.support.metadata import commit


def test_commit_on_an_older_snapshot_is_409_and_changes_nothing(client: RestClient) -> None:
    create(client)
    send(client, *commit(1), requirements=[at(None)])
    # An append would be moved onto the newest version.
    response = send(client, *commit(2, op="delete"), requirements=[at(None)])
    assert error(response) == (409, "CommitFailedException")
    assert load(client)["metadata"]["current-snapshot-id"] == 1


def test_commit_sent_again_has_landed(client: RestClient, served: Served) -> None:
    create(client)
    first = send(client, *commit(1), requirements=[at(None)])
    again = send(client, *commit(1), requirements=[at(None)])
    assert again.status_code == 200
    assert again.json()["metadata-location"] == first.json()["metadata-location"]
    assert served.publications == 2


def test_commit_that_changes_nothing_publishes_nothing(client: RestClient, served: Served) -> None:
    create(client, properties={"a": "1"})
    response = send(client, {"action": "set-properties", "updates": {"a": "1", "gc.enabled": "x"}})
    assert response.status_code == 200
    assert served.publications == 1


def test_commit_says_its_type_and_copies_the_content_id_where_rows_stay(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1))
    send(client, *commit(2, parent=1, op="replace"))
    send(client, {"action": "set-properties", "updates": {"a": "1"}})
    send(client, *commit(3, parent=2, op="delete"))
    types = [transaction.type for transaction in served.history()]
    snapshot_, append, update, delete = (
        TransactionType.SNAPSHOT,
        TransactionType.APPEND,
        TransactionType.UPDATE,
        TransactionType.DELETE,
    )
    assert types == [snapshot_, append, update, update, delete]
    contents = [t.version.content_id for t in served.history() if t.version]
    assert contents[1] == contents[2] == contents[3]
    assert len(set(contents)) == 3


def test_removing_snapshots_is_refused_and_names_the_way(client: RestClient) -> None:
    create(client)
    response = send(client, {"action": "remove-snapshots", "snapshot-ids": [1]})
    assert error(response) == (403, "ForbiddenException")
    assert "headgate cleanup" in response.json()["error"]["message"]


def test_commit_to_no_table_is_404(client: RestClient) -> None:
    assert error(send(client, *commit(1))) == (404, "NoSuchTableException")


def overwrite(id_: int, parent: int) -> list[dict[str, Any]]:
    return commit(id_, parent=parent, op="overwrite", summary={"deleted-data-files": "1"})


def test_overwrite_of_rows_never_seen_is_409_however_often_it_is_sent(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1))
    load(client)
    with served.client() as other:
        send(other, *commit(2, parent=1), requirements=[at(1)])
    for _ in range(3):
        load(client, query="")
        response = send(client, *overwrite(3, 2), requirements=[at(2)])
        assert error(response) == (409, "CommitFailedException")
    load(client, query="")
    assert send(client, *overwrite(4, 2), requirements=[at(2)]).status_code == 200


def test_replacement_of_rows_never_seen_is_409(client: RestClient, served: Served) -> None:
    create(client)
    send(client, *commit(1))
    load(client)
    with served.client() as other:
        send(other, *commit(2, parent=1))
    drop_main = {"action": "remove-snapshot-ref", "ref-name": "main"}
    for _ in range(2):
        load(client, query="")
        assert send(client, drop_main).json()["error"]["headgate"]["code"] == "stale_replacement"
    load(client)
    assert send(client, drop_main).status_code == 200


def test_overwrite_after_somebody_changed_only_properties_is_taken(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1))
    load(client)
    with served.client() as other:
        send(other, {"action": "set-properties", "updates": {"a": "1"}})
    load(client, query="")
    assert send(client, *overwrite(2, 1)).status_code == 200


def test_transaction_over_two_tables_is_one_publication_or_none(
    client: RestClient, served: Served
) -> None:
    for name in ("a", "b"):
        create(client, name)

    def changes(*ids: int | None) -> dict[str, Any]:
        return {
            "table-changes": [
                table_change(
                    name, *commit(7 if required is None else 8), requirements=[at(required)]
                )
                for name, required in zip("ab", ids, strict=True)
            ]
        }

    assert client.call("POST", "transactions/commit", changes(None, None)).status_code == 204
    assert served.publications == 3
    response = client.call("POST", "transactions/commit", changes(7, 5))
    assert error(response) == (409, "CommitFailedException")
    assert load(client, "a")["metadata"]["current-snapshot-id"] == 7
    assert client.call("POST", "transactions/commit", changes(None, None)).status_code == 204


def test_transaction_that_names_a_table_twice_is_400(client: RestClient) -> None:
    create(client)
    twice = {"table-changes": [table_change("t"), table_change("t")]}
    response = client.call("POST", "transactions/commit", twice)
    assert error(response) == (400, "BadRequestException")


CONFLICT = ViewConflict(
    [Mismatch(dataset="db.t", branch="master", field="view", expected="t-1", actual="t-2")]
)


@pytest.mark.parametrize(
    ("raised", "answer"),
    [
        (CONFLICT, (409, "CommitFailedException")),
        (
            AttemptSuperseded(key="k", epoch=1, newest=2, state="superseded"),
            (403, "ForbiddenException"),
        ),
        (CatalogUnavailable(where="x", reason="y"), (503, "ServiceUnavailableException")),
        (OutcomeUnknown(operation="o-1"), (500, "CommitStateUnknownException")),
        (RuntimeError("a defect"), (500, "CommitStateUnknownException")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_of_the_catalog_reaches_the_client_as_the_protocol_words_it(
    client: RestClient,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    raised: HeadgateError,
    answer: tuple[int, str],
) -> None:
    create(client)

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(served.catalog, "commit", fail)
    assert error(send(client, *commit(1))) == answer


def test_commit_that_happened_never_sounds_as_if_it_had_not(
    client: RestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client)
    send(client, *commit(1))

    def unreadable(*_: object) -> None:
        raise StorageUnavailable(where="x", reason="the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(RenderedTables, "reply", unreadable)
        response = send(client, *commit(2, parent=1))
    assert error(response) == (500, "CommitStateUnknownException")
    assert served.publications == 3
    assert send(client, *commit(2, parent=1)).status_code == 200
