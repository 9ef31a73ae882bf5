"""Tickets of a branch: served in order, leased, and only for the branches that they name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from headgate.catalog.database import PLACE, Connection, Place, Suspended, kept_in_place
from headgate.catalog.operations import find_operations
from headgate.catalog.records import is_waited_for
from headgate.catalog.schema import tickets
from headgate.catalog.tickets import Line, LineWait, count_ahead, renew_lines
from headgate.model.changes import operation_key
from headgate.model.ids import BranchId, TransactionId
from headgate.store.embedded import Store
from tests.support.rows import made_settings
from tests.support.stores import expire_just_now, files_branch, put

_A, _B, _C = BranchId("b-a"), BranchId("b-b"), BranchId("b-c")


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with Store(made_settings(made_catalog_url, tmp_path)) as opened:
        yield opened


def _joined(store: Store, *branches: BranchId, seconds: float = 0) -> Line:
    line = Line(store.database, seconds=seconds)
    line.join(branches)
    # Tickets of one millisecond, the precision of SQLite's clock, have no order of arrival.
    time.sleep(0.002)
    return line


def _expire(store: Store, line: Line) -> None:
    assert line.ticket is not None
    mine = tickets.c.id == line.ticket.id
    store.database.write(lambda c: c.execute(update(tickets).where(mine).values(lease_until=1)))


def test_tickets_are_served_in_the_order_they_were_taken(store: Store) -> None:
    first, second = _joined(store, _A, _B), _joined(store, _B)
    assert first.wait()
    assert not second.wait()
    first.leave()
    assert second.wait()


def test_tickets_of_other_branches_do_not_wait(store: Store) -> None:
    _joined(store, _A)
    assert _joined(store, _C).wait()
    assert store.database.read(lambda c: is_waited_for(c, [_A, _B]))
    assert not store.database.read(lambda c: is_waited_for(c, [_B]))


def test_tickets_ahead_are_counted_once_for_all_branches(store: Store) -> None:
    lines = [_joined(store, _A, _B), _joined(store, _B), _joined(store, _A, _B), _joined(store, _C)]
    waits = [LineWait(deadline=0, line=line, holder=None) for line in lines]
    assert store.database.read(lambda c: count_ahead(c, waits)) == [0, 1, 2, 0]


def test_tickets_whose_lease_ran_out_hold_nobody_up(store: Store) -> None:
    first, second = _joined(store, _A), _joined(store, _A)
    _expire(store, first)
    assert second.wait()
    second.leave()
    # The next ticket deletes the one that expired.
    third = _joined(store, _A)
    assert third.wait()
    third.leave()
    assert not store.database.read(lambda c: is_waited_for(c, [_A]))


def test_ticket_that_expired_gets_its_old_place_again(store: Store) -> None:
    """A process that was paused for longer than a lease does not go to the end of the queue."""
    first, second = _joined(store, _A), _joined(store, _A)
    _expire(store, first)
    third = _joined(store, _A)
    assert first.wait()
    assert not second.wait() and not third.wait()


def test_tickets_of_many_writers_are_renewed_together(store: Store) -> None:
    lines = [_joined(store, _A), _joined(store, _A)]
    before = _leases(store)
    store.database.write(lambda c: renew_lines(c, lines))
    assert min(_leases(store)) > max(before)


def _leases(store: Store) -> list[int]:
    def read(connection: Connection) -> list[int]:
        return list(connection.execute(select(tickets.c.lease_until)).scalars())

    return store.database.read(read)


def test_writer_waits_for_an_open_transaction_until_its_lease_ends(store: Store) -> None:
    branch = files_branch(store)
    put(branch, a="1")
    opened = branch.transaction()
    line = _joined(store, branch.load().id)
    holder = TransactionId(opened.transaction.id)
    assert not line.wait(holder)
    expire_just_now(store, holder)
    assert line.wait(holder)


def test_writer_in_a_server_is_suspended_and_keeps_its_ticket(store: Store) -> None:
    ahead, place = _joined(store, _A), Place()
    token = PLACE.set(place)
    try:
        with (
            pytest.raises(Suspended),
            kept_in_place(lambda: _joined(store, _A, seconds=60)) as line,
        ):
            line.wait()
        assert place.kept is line
        ahead.leave()
        with kept_in_place(lambda: _joined(store, _A)) as repeated:
            assert repeated is line
            assert repeated.wait()
        assert line.ticket is None
        assert _leases(store) == []
    finally:
        PLACE.reset(token)


def test_line_of_an_operation_keeps_it_in_progress_until_the_writer_leaves(store: Store) -> None:
    key = operation_key("k1", actor="ana", kind="mutate", branch="master", request={})
    line = Line(store.database, seconds=0, operation=key)
    line.join([_A])
    line.renew()

    def states() -> list[str]:
        found = store.database.read(lambda c: find_operations(c, "k1"))
        return [one["state"] for one in found]

    assert states() == ["in_progress"]
    line.leave()
    assert states() == []
