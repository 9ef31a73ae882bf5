"""Text output of the command line, without a store."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from headgate.cli.format import (
    branch_line,
    branch_trees,
    event_text,
    history_rows,
    log_rows,
    moves_text,
    recovery_rows,
    size_text,
    to_the_second,
    transaction_line,
)
from headgate.cli.output import count_text
from headgate.model.access import Protections
from headgate.model.ids import (
    BranchId,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    instant_text,
)
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import MoveRecord, Publication, PublicationKind, TransactionState
from headgate.store.documents import TRANSACTION
from tests.support.nouns import a_branch, a_transaction

SECOND = 1_000_000


def render(*shown: Any) -> str:
    out = io.StringIO()
    for one in shown:
        Console(file=out, width=200, color_system=None).print(one)
    return out.getvalue()


def a_move(branch: str, before: str | None, after: str | None) -> MoveRecord:
    return MoveRecord(
        dataset=parse_dataset_name("sales.orders"),
        branch_id=BranchId(f"b-{branch}"),
        branch=branch,
        from_transaction=TransactionId(before) if before else None,
        to_transaction=TransactionId(after) if after else None,
    )


def a_publication(number: int, at: int, *moves: MoveRecord) -> Publication:
    return Publication(
        number=PublicationNumber(number),
        at=Instant(at),
        actor="ana",
        kind=PublicationKind.COMMIT,
        operation=OperationId("o-1"),
        moves=moves,
    )


def test_branch_trees_put_children_below_their_parent() -> None:
    branches = [
        a_branch("feature", parent="develop", head="t-3", view="t-2"),
        a_branch("develop", parent="master", head="t-1", view="t-1"),
        a_branch("master", head="t-1", view="t-1"),
        a_branch("alone"),
    ]
    assert render(*branch_trees(branches, Protections(master=("sales.*",)))).splitlines() == [
        "sales.orders",
        "├── master  t-1  protected",
        "│   └── develop  t-1",
        "│       └── feature  t-2  OPEN t-3",
        "└── alone  empty",
    ]


def test_branch_trees_of_two_datasets_are_two() -> None:
    branches = [a_branch("master"), a_branch("master", dataset="raw.scans")]
    assert len(branch_trees(branches)) == 2


def test_branch_line_of_a_name_that_looks_like_markup_shows_it() -> None:
    assert "[bold]" in branch_line(a_branch("[bold]")).plain


def test_moves_text_of_many_shows_the_first_three() -> None:
    moves = [a_move(f"b{n}", "t-1", "t-2") for n in range(5)]
    assert moves_text(moves[:1]) == "sales.orders@b0 t-1 → t-2"
    assert moves_text(moves).endswith("sales.orders@b2 t-1 → t-2 and 2 more")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (None, "t-1", "sales.orders@m nothing → t-1"),
        ("t-1", None, "sales.orders@m t-1 → nothing"),
        (None, None, "sales.orders@m"),
    ],
)
def test_moves_text_where_a_side_is_missing(
    before: str | None, after: str | None, text: str
) -> None:
    assert moves_text([a_move("m", before, after)]) == text


def test_log_rows_are_publications_and_events_by_time_newest_first() -> None:
    older, newer = a_publication(1, SECOND), a_publication(2, 3 * SECOND, a_move("m", None, "t-1"))
    event = {
        "at": "1970-01-01T00:00:02.000000Z",
        "kind": "abandoned",
        "actor": "headgate:recovery",
        "dataset": "raw.scans",
        "branch": "master",
        "transaction": "t-9",
        "original_actor": "bo",
    }
    rows = log_rows([newer, older], [event])
    assert [row[0] for row in rows] == ["2", "", "1"]
    assert rows[0] == (
        *("2", "1970-01-01 00:00:03", "commit", "ana"),
        "sales.orders@m nothing → t-1",
    )
    assert rows[1][4] == "raw.scans@master t-9 of bo"


def test_recovery_rows_name_what_was_settled_and_where() -> None:
    aborted = {
        "target": {"dataset": "raw.scans", "branch": "master"},
        "outcome": "aborted",
        "restored_to": None,
    }
    landed = {
        "target": {"repository": "songs", "branch": "main"},
        "outcome": "landed",
        "head": "5f2c",
    }
    row = {
        "at": "1970-01-01T00:00:02.000000Z",
        "kind": "abort",
        "original_actor": "bo",
        "operation": "t-1",
        "outcomes": [aborted, landed],
    }
    what = "raw.scans@master aborted, back at nothing, songs@main landed at 5f2c"
    assert recovery_rows([row]) == [("1970-01-01 00:00:02", "abort", "bo", "t-1", what)]


def test_event_text_of_an_operation_names_it() -> None:
    assert event_text({"operation": "o-1", "original_actor": "bo"}) == "o-1 of bo"


def test_history_rows_show_when_it_closed_or_else_opened() -> None:
    [row] = history_rows([a_transaction("t-1", opened_at=Instant(5 * SECOND))])
    assert row == ("t-1", "UPDATE", "OPEN", "ana", "1970-01-01 00:00:05", "master")


def test_transaction_line_of_an_open_one_has_no_closing_time() -> None:
    line = transaction_line(TRANSACTION.json(a_transaction("t-1", actor="[red]ana"))).plain
    assert "sales.orders@master" in line and "by [red]ana" in line
    assert "closed" not in line
    aborted = a_transaction("t-1", state=TransactionState.ABORTED)
    assert "ABORTED" in transaction_line(TRANSACTION.json(aborted)).plain


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_size_text_uses_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


def test_count_text_has_a_plural_and_a_time_has_seconds() -> None:
    assert [count_text(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert to_the_second(instant_text(Instant(1_700_000_000_999_999))) == "2023-11-14 22:13:20"


def test_moves_text_of_a_branch_created_and_written_names_it_once() -> None:
    moves = [a_move("m", None, "t-1"), a_move("m", "t-1", "t-2")]
    assert moves_text(moves) == "sales.orders@m nothing → t-2"
