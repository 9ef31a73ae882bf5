"""Invariants of every store at every time, after any kill, checked on the raw rows.

Written from the design and not from the code: it uses none of the catalog's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select

from headgate.catalog import schema
from headgate.catalog.records import list_datasets
from headgate.files.edits import FileEdit, publish_edit
from headgate.model.changes import Caller
from headgate.model.nouns import Dataset, DatasetKind
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.stores import everything

Rows = Mapping[str, RowMapping]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Rows that the invariants read, by id."""

    branches: Rows
    transactions: Rows
    publications: list[RowMapping]
    moves: list[RowMapping]
    counter: RowMapping
    working: set[str]


def assert_store_sound(store: Store) -> None:
    """Check all invariants: the rows are right, recovery is done, every branch can be written."""
    assert_rows_sound(store)
    store.recover()
    assert_rows_sound(store)
    before = everything(store)
    store.recover()
    assert everything(store) == before, "a second recovery changed something"
    assert_writable(store)
    assert_rows_sound(store)


def assert_rows_sound(store: Store) -> None:
    """Check the invariants that only need reads; they hold before recovery too."""
    facts = store.database.read(_gather)
    for branch in facts.branches.values():
        _check_branch(facts, branch)
        _check_ancestry(facts, branch)
    for transaction in facts.transactions.values():
        _check_transaction(facts, transaction)
    _check_log(facts)
    _check_content(store, facts)


def assert_writable(store: Store) -> None:
    """Check that a write succeeds on every branch whose head is not OPEN."""
    facts = store.database.read(_gather)
    by_id = {dataset.id: dataset for dataset in _files_datasets(store)}
    for branch in facts.branches.values():
        if branch["head_id"] != branch["view_id"]:
            continue
        dataset = by_id[branch["dataset_id"]]
        name, view = branch["name"], branch["view_id"]
        entry = store_bytes(store, "oracle/after", str(view).encode())
        receipt = publish_edit(
            store.database,
            store.trees,
            dataset,
            name,
            FileEdit(put=[entry]),
            caller=Caller(actor="oracle", may_write_protected=True),
        )
        shown = store.dataset(str(dataset.name)).branch(name)
        assert receipt.transactions == {branch["id"]: shown.load().view}
        assert shown.read("oracle/after").decode() == str(view)


def jump_depth(depth: int) -> int | None:
    """Return the depth that the skip pointer at this depth leads to: greedy skew-binary digits."""
    if depth == 0:
        return None
    rest, part = depth, 0
    while rest:
        part = (1 << ((rest + 1).bit_length() - 1)) - 1
        rest -= part
    return depth - part


def _gather(connection: Connection) -> Facts:
    def rows(table: Table, *order: Any) -> list[RowMapping]:
        return list(connection.execute(select(table).order_by(*order)).mappings())

    by_publication = rows(schema.moves, schema.moves.c.publication, schema.moves.c.ordinal)
    [counter] = rows(schema.log_counter)
    return Facts(
        branches={row["id"]: row for row in rows(schema.branches)},
        transactions={row["id"]: row for row in rows(schema.transactions)},
        publications=rows(schema.publications, schema.publications.c.number),
        moves=by_publication,
        counter=counter,
        working={row["transaction_id"] for row in rows(schema.working_objects)},
    )


def _check_branch(facts: Facts, branch: RowMapping) -> None:
    """Check that head and view fit together, over a linear and COMMITTED history."""
    head, view = branch["head_id"], branch["view_id"]
    if head != view:
        newest = facts.transactions[head]
        assert newest["state"] == "OPEN", f"{branch['name']}: head {head} is {newest['state']}"
        assert newest["parent_id"] == view, f"{branch['name']}: the view is not the head's parent"
    chain: list[RowMapping] = []
    here = head
    while here is not None:
        chain.append(facts.transactions[here])
        here = chain[-1]["parent_id"]
        assert len(chain) <= len(facts.transactions), "a history has a cycle"
    chain.reverse()
    for depth, step in enumerate(chain):
        assert step["dataset_id"] == branch["dataset_id"]
        assert step["depth"] == depth
        jump = jump_depth(depth)
        assert step["jump_id"] == (chain[jump]["id"] if jump is not None else None)
        if step["id"] != head or head == view:
            assert step["state"] == "COMMITTED", f"{step['id']} is {step['state']} below a head"
        if depth:
            assert step["opened_at"] > chain[depth - 1]["closed_at"], "history out of order"


def _check_ancestry(facts: Facts, branch: RowMapping) -> None:
    seen = [branch["id"]]
    above = branch["parent_id"]
    while above is not None:
        assert above in facts.branches, f"{branch['name']} has a parent that is gone"
        assert above not in seen, f"{branch['name']} is its own ancestor"
        assert facts.branches[above]["dataset_id"] == branch["dataset_id"]
        seen.append(above)
        above = facts.branches[above]["parent_id"]


def _check_transaction(facts: Facts, transaction: RowMapping) -> None:
    id, state = transaction["id"], transaction["state"]
    heads = {b["head_id"] for b in facts.branches.values()}
    views = {b["view_id"] for b in facts.branches.values()}
    assert (transaction["closed_at"] is None) == (state == "OPEN")
    assert (transaction["publication"] is not None) == (state == "COMMITTED")
    if state == "OPEN":
        assert id in heads - views, f"OPEN {id} is on no branch"
    else:
        assert transaction["opened_at"] <= transaction["closed_at"]
        assert id not in facts.working, f"{id} is {state} and still keeps objects"
    if state == "ABORTED":
        assert id not in heads | views, f"ABORTED {id} is on a branch"
    if state == "COMMITTED":
        made = [m for m in facts.moves if m["publication"] == transaction["publication"]]
        assert id in {m["to_id"] for m in made}, f"{id} was never published"


def _check_log(facts: Facts) -> None:
    """Check that the replayed moves of all publications lead to the views of today."""
    numbers = [p["number"] for p in facts.publications]
    assert numbers == list(range(1, facts.counter["number"] + 1))
    times = [p["at"] for p in facts.publications]
    assert times == sorted(set(times)), "publications out of order"
    assert facts.counter["last_at"] == (times[-1] if times else 0)
    assert {m["publication"] for m in facts.moves} == set(numbers), "a publication moves nothing"
    operations = [p["operation_id"] for p in facts.publications]
    assert len(operations) == len(set(operations)), "an operation was published twice"
    shown: dict[str, str | None] = {}
    deleted: set[str] = set()
    for move in facts.moves:
        id = move["branch_id"]
        if move["change"] in {"created", "restored"}:
            assert id not in shown and move["from_id"] is None
            assert (id in deleted) == (move["change"] == "restored")
        else:
            assert shown[id] == move["from_id"], f"publication {move['publication']} came from afar"
        shown[id] = move["to_id"]
        if move["change"] == "deleted":
            assert move["to_id"] is None
            del shown[id]
            deleted.add(id)
    assert shown == {b["id"]: b["view_id"] for b in facts.branches.values()}


def _check_content(store: Store, facts: Facts) -> None:
    """Check that every file of every view can be read and has its digest."""
    for dataset in _files_datasets(store):
        mine = [b for b in facts.branches.values() if b["dataset_id"] == dataset.id]
        for branch in mine:
            handle = store.dataset(str(dataset.name)).branch(branch["name"])
            for entry in handle.files():
                if not entry.is_directory:
                    store.trees.read(entry)


def _files_datasets(store: Store) -> list[Dataset]:
    found = store.database.read(list_datasets)
    return [dataset for dataset in found if dataset.kind is DatasetKind.FILES]
