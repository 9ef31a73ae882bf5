"""Completeness of a server's client: verbs, errors, events, addresses."""

from __future__ import annotations

import inspect

import pytest

from headgate.client.contents import RemoteShownFiles
from headgate.client.datasets import (
    RemoteBranchHandle,
    RemoteDatasetHandle,
    RemoteTransactionHandle,
    RemoteUnitHandle,
)
from headgate.client.http import HttpClient, events, failure
from headgate.client.rows import RemoteRows
from headgate.client.store import RemoteStore
from headgate.errors import (
    DatasetNotFound,
    HeadgateError,
    Invalid,
    Mismatch,
    NotFound,
    RowsChanged,
    TransactionNotOpen,
    Unavailable,
    ViewConflict,
    kinds,
)
from headgate.server.api.conventions import status_of
from headgate.store.datasets import BranchHandle, DatasetHandle
from headgate.store.embedded import Store
from headgate.store.rows import Rows
from headgate.store.transactions import CommitsAtExit, ShownFiles, TransactionHandle, UnitHandle

PAIRS: list[tuple[type, type]] = [
    (Store, RemoteStore),
    (DatasetHandle, RemoteDatasetHandle),
    (BranchHandle, RemoteBranchHandle),
    (TransactionHandle, RemoteTransactionHandle),
    (UnitHandle, RemoteUnitHandle),
    (ShownFiles, RemoteShownFiles),
    (Rows, RemoteRows),
]
# Verbs that only call others, which send requests.
THROUGH: dict[type, set[str]] = {
    Store: {"mutate", "load", "merge", "review", "once", "publish_jobspecs", "sql", "table"},
    DatasetHandle: {"exists", "upload", "writing"},
    BranchHandle: {"exists", "put", "remove", "files", "view"},
    TransactionHandle: {"abort", "put", "write", "remove"},
    UnitHandle: {"abort"},
    ShownFiles: {"entries", "find"},
    Rows: {"plan_schema", "apply_schema"},
}


def _verbs(kind: type) -> set[str]:
    """Return public methods; class methods (`load`, `open`) exist only on local stores."""
    return {
        name
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("here", "there"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_verb_of_a_store_is_a_request_to_a_server(here: type, there: type) -> None:
    assert _verbs(here) - THROUGH.get(here, set()) <= _own(here, there), (
        "it would act on a catalog that is not there"
    )


@pytest.mark.parametrize("there", [RemoteTransactionHandle, RemoteUnitHandle])
def test_what_a_block_ends_is_ended_by_a_request(there: type) -> None:
    here = next(here for here, remote in PAIRS if remote is there)
    assert CommitsAtExit.__abstractmethods__ <= _own(here, there)


def _own(here: type, there: type) -> set[str]:
    """Return the names defined by the client's class, or by a base that only it has."""
    return {name for kind in there.__mro__ if kind not in here.__mro__ for name in vars(kind)}


@pytest.mark.parametrize(
    "error",
    [
        DatasetNotFound(dataset="a.b"),
        TransactionNotOpen(transaction="t-1", state="ABORTED"),
        NotFound("there is no such thing.", thing=1),
        ViewConflict(
            [Mismatch(dataset="a.b", branch="m", field="view", expected=None, actual="t-1")]
        ),
        RowsChanged(mismatch={"table_key": "a.b@m"}, conflicts=[{"dataset": "a.b"}]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_arrives_as_it_was_raised(error: HeadgateError) -> None:
    arrived = failure(status_of(error), error.to_json())
    assert type(arrived) is type(error)
    assert (arrived.message, arrived.to_json()) == (error.message, error.to_json())


def test_error_of_every_code_arrives_in_its_family() -> None:
    for kind in kinds():
        sent = kind.__new__(kind)
        HeadgateError.__init__(sent, "x.")
        family = next(base for base in kind.__mro__ if base.__base__ in {HeadgateError, Exception})
        assert isinstance(failure(status_of(sent), sent.to_json()), family), kind


def test_error_of_an_unknown_code_is_told_by_its_status() -> None:
    assert isinstance(failure(404, {"error": "x.", "code": "new"}), NotFound)
    assert isinstance(failure(502, {"error": "x.", "code": "http"}), Unavailable)


def test_events_come_whole_however_they_are_cut() -> None:
    text = b'event: progress\ndata: {"a": 1}\n\n: still here\n\nevent: end\ndata: {"a": 2}\n\n'
    for size in (1, 7, len(text)):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(events(chunks)) == [("progress", {"a": 1}), ("end", {"a": 2})]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:secret@host", "nonsense"])
def test_address_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        HttpClient(url, None)


def test_server_that_is_not_there_is_unavailable_and_the_token_stays_secret() -> None:
    http = HttpClient("http://127.0.0.1:1", "hg_secret")
    with pytest.raises(Unavailable) as told:
        http.get("/store")
    assert "hg_secret" not in str(told.value) and "127.0.0.1:1" in str(told.value)
    http.close()
