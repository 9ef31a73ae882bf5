"""Tickets of a branch: served in order, leased, and only for the branches that they name."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import update

from headgate.catalog.tickets import (
    is_waited_for,
    release_ticket,
    take_ticket,
    tickets,
    wait_for_ticket,
)
from headgate.model.ids import BranchId
from headgate.store.embedded import Store
from tests.support.rows import made_settings

_A, _B, _C = BranchId("b-a"), BranchId("b-b"), BranchId("b-c")


def test_tickets_are_served_in_the_order_they_were_taken(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        first = take_ticket(store.database, [_A, _B])
        second = take_ticket(store.database, [_B])
        assert wait_for_ticket(store.database, first, seconds=0)
        assert not wait_for_ticket(store.database, second, seconds=0)
        release_ticket(store.database, first)
        assert wait_for_ticket(store.database, second, seconds=0)


def test_tickets_of_other_branches_do_not_wait(made_catalog_url: str, tmp_path: Path) -> None:
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        take_ticket(store.database, [_A])
        other = take_ticket(store.database, [_C])
        assert wait_for_ticket(store.database, other, seconds=0)
        assert store.database.read(lambda c: is_waited_for(c, [_A, _B]))
        assert not store.database.read(lambda c: is_waited_for(c, [_B]))


def test_tickets_whose_lease_ran_out_hold_nobody_up(made_catalog_url: str, tmp_path: Path) -> None:
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        take_ticket(store.database, [_A])
        second = take_ticket(store.database, [_A])
        store.database.write(
            lambda c: c.execute(
                update(tickets).where(tickets.c.id != second.id).values(lease_until=1)
            )
        )
        assert wait_for_ticket(store.database, second, seconds=0)
        release_ticket(store.database, second)
        assert not store.database.read(lambda c: is_waited_for(c, [_A]))
