"""Queries over the past: histories, publications, earlier views, events and recoveries."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, bindparam, literal, select

from headgate.catalog import records, schema
from headgate.errors import NotFound
from headgate.model import nouns
from headgate.model.ids import DatasetId, Instant, PublicationNumber, TransactionId

# Most readers stop after a few steps; a longer walk reads larger pages.
_FIRST_PAGE = 16
_PAGE = 256


def _ancestors() -> Select[str]:
    """Build the query for a transaction and its ancestors, newest first, up to `steps` of them."""
    here = (
        select(schema.transactions.c.id, schema.transactions.c.parent_id, literal(1).label("step"))
        .where(schema.transactions.c.id == bindparam("newest"))
        .cte("here", recursive=True)
    )
    before = (
        select(schema.transactions.c.id, schema.transactions.c.parent_id, here.c.step + 1)
        .join(here, here.c.parent_id == schema.transactions.c.id)
        .where(here.c.step < bindparam("steps"))
    )
    walked = here.union_all(before)
    return select(walked.c.id).order_by(walked.c.step)


_ANCESTORS = _ancestors()


def walk_history(connection: Connection, branch: nouns.Branch) -> Iterator[nouns.Transaction]:
    """Yield the transactions of a branch, newest first: its head, then each parent in turn.

    After a rename, the history continues with the transactions of the earlier name.
    """
    here, page = branch.head, _FIRST_PAGE
    while here is not None:
        walked = connection.execute(_ANCESTORS, {"newest": here, "steps": page}).scalars()
        ids = [TransactionId(id) for id in walked]
        found = records.load_transactions(connection, ids)
        # Empty where a reader may not see the dataset of the earlier name.
        here = None
        for id in ids:
            yield found[id]
            here = found[id].renamed_from or found[id].parent
            if found[id].renamed_from is not None:
                break
        page = min(page * 4, _PAGE)


def earlier_datasets(connection: Connection, dataset: DatasetId) -> list[DatasetId]:
    """Return the datasets that this one was renamed from, on any branch; the nearest first."""
    old = schema.transactions.alias("old")
    found, waiting = [dataset], [dataset]
    while waiting:
        query = (
            select(old.c.dataset_id)
            .join(schema.transactions, schema.transactions.c.renamed_from == old.c.id)
            .where(schema.transactions.c.dataset_id == waiting.pop(0))
            .order_by(schema.transactions.c.publication.desc())
        )
        for id in connection.execute(query).scalars():
            if id not in found:
                found.append(DatasetId(id))
                waiting.append(DatasetId(id))
    return found[1:]


def list_history(
    connection: Connection, branch: nouns.Branch, *, aborted: bool = False, limit: int | None = None
) -> list[nouns.Transaction]:
    """Return the history of a branch; `aborted` adds the transactions that were aborted on it."""
    chain = list(islice(walk_history(connection, branch), limit))
    if aborted:
        query = records.TRANSACTIONS.where(
            schema.transactions.c.branch_id == branch.id, schema.transactions.c.state == "ABORTED"
        )
        policy = records.policy_of(connection)
        rows = connection.execute(query).mappings()
        chain += [records.to_transaction(row, policy) for row in rows]
        chain.sort(key=lambda t: (t.opened_at, t.depth), reverse=True)
    return chain[:limit]


def list_publications(
    connection: Connection,
    *,
    actor: str | None = None,
    dataset: DatasetId | None = None,
    branch: str | None = None,
    kind: nouns.PublicationKind | None = None,
    limit: int = 50,
    before: int | None = None,
) -> list[nouns.Publication]:
    """Return publications, newest first; with `before`, only those with a lower number."""
    query = select(schema.publications).order_by(schema.publications.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(schema.publications.c.number < before)
    if dataset is not None or branch is not None:
        moved = {schema.moves.c.dataset_id: dataset, schema.moves.c.branch_name: branch}
        involved = records.filtered(select(schema.moves.c.publication).distinct(), moved)
        if before is not None:
            involved = involved.where(schema.moves.c.publication < before)
        if actor is None and kind is None:
            # Read from the newest end of an index, so that the cost depends on `limit` only.
            involved = involved.order_by(schema.moves.c.publication.desc()).limit(limit)
        query = query.where(schema.publications.c.number.in_(involved))
    query = records.filtered(
        query, {schema.publications.c.actor: actor, schema.publications.c.kind: kind}
    )
    rows = list(connection.execute(query).mappings())
    found = _moves_of(connection, [row["number"] for row in rows])
    return [_to_publication(row, found.get(row["number"], ())) for row in rows]


def load_publication(connection: Connection, number: int) -> nouns.Publication:
    """Return a publication by its number, or raise `NotFound`."""
    query = select(schema.publications).where(schema.publications.c.number == number)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(
            f"publication {number} does not exist. `headgate log` lists publications.",
            publication=number,
        )
    return _to_publication(row, _moves_of(connection, [number]).get(number, ()))


def view_at(
    connection: Connection, dataset: DatasetId, branch: str, publication: int
) -> TransactionId | None:
    """Return the view that the branch of this name had just after a publication."""
    row = connection.execute(
        select(schema.moves.c.to_id)
        .where(
            schema.moves.c.dataset_id == dataset,
            schema.moves.c.branch_name == branch,
            schema.moves.c.publication <= publication,
        )
        .order_by(schema.moves.c.publication.desc(), schema.moves.c.ordinal.desc())
        .limit(1)
    ).one_or_none()
    return TransactionId(row.to_id) if row is not None and row.to_id is not None else None


def newest_publication(connection: Connection) -> PublicationNumber:
    return PublicationNumber(connection.execute(select(schema.log_counter.c.number)).scalar_one())


def publication_at(connection: Connection, moment: Instant) -> PublicationNumber:
    """Return the number of the newest publication at or before a time; 0 if there is none."""
    number = connection.execute(
        select(schema.publications.c.number)
        .where(schema.publications.c.at <= moment)
        .order_by(schema.publications.c.at.desc())
        .limit(1)
    ).scalar_one_or_none()
    return PublicationNumber(number or 0)


def list_events(
    connection: Connection,
    *,
    actor: str | None = None,
    dataset: DatasetId | None = None,
    branch: str | None = None,
    kind: str | None = None,
    limit: int = 50,
    skip: int = 0,
) -> list[dict[str, Any]]:
    """Return recorded events, newest first; publications are not events."""
    query = (
        select(schema.events, *records.DATASET_NAME)
        .outerjoin(schema.datasets, schema.datasets.c.id == schema.events.c.dataset_id)
        .order_by(schema.events.c.at.desc(), schema.events.c.id.desc())
        .limit(limit)
        .offset(skip)
    )
    wanted = {
        schema.events.c.actor: actor,
        schema.events.c.dataset_id: dataset,
        schema.events.c.branch_name: branch,
        schema.events.c.kind: kind,
    }
    policy = records.policy_of(connection)
    return [
        {
            "at": row["at"],
            "actor": row["actor"],
            "kind": row["kind"],
            "dataset": str(records.dataset_name(row)) if row["namespace"] is not None else None,
            "branch": row["branch_name"],
            "transaction": row["transaction_id"],
            **(policy.shown_part(detail) if policy else detail),
        }
        for row in connection.execute(records.filtered(query, wanted)).mappings()
        for detail in [records.load(row["detail"])]
    ]


def list_recoveries(
    connection: Connection,
    *,
    actor: str | None = None,
    kind: str | None = None,
    limit: int = 50,
    skip: int = 0,
) -> list[dict[str, Any]]:
    """Return the audit log of recovery, newest first; `actor` is the actor of the settled work."""
    query = (
        select(schema.recoveries)
        .order_by(schema.recoveries.c.at.desc(), schema.recoveries.c.id.desc())
        .limit(limit)
        .offset(skip)
    )
    query = records.filtered(
        query, {schema.recoveries.c.original_actor: actor, schema.recoveries.c.kind: kind}
    )
    return [
        {
            "recovery": row["id"],
            "at": row["at"],
            "kind": row["kind"],
            "original_actor": row["original_actor"],
            "operation": row["operation_id"],
            "outcomes": records.load(row["outcomes"]),
        }
        for row in connection.execute(query).mappings()
    ]


def _moves_of(
    connection: Connection, numbers: list[int]
) -> dict[int, tuple[nouns.MoveRecord, ...]]:
    found: dict[int, tuple[nouns.MoveRecord, ...]] = {}
    for start in range(0, len(numbers), _PAGE):
        query = (
            select(schema.moves, *records.DATASET_NAME)
            .join(schema.datasets, schema.datasets.c.id == schema.moves.c.dataset_id)
            .where(schema.moves.c.publication.in_(numbers[start : start + _PAGE]))
            .order_by(schema.moves.c.publication, schema.moves.c.ordinal)
        )
        for row in connection.execute(query).mappings():
            found[row["publication"]] = (*found.get(row["publication"], ()), _to_move(row))
    return found


def _to_move(row: RowMapping) -> nouns.MoveRecord:
    return records.noun_of(
        nouns.MoveRecord,
        row,
        dataset=records.dataset_name(row),
        branch=row["branch_name"],
        from_transaction=row["from_id"],
        to_transaction=row["to_id"],
    )


def _to_publication(row: RowMapping, moved: tuple[nouns.MoveRecord, ...]) -> nouns.Publication:
    kind, operation = nouns.PublicationKind(row["kind"]), row["operation_id"]
    return records.noun_of(nouns.Publication, row, kind=kind, operation=operation, moves=moved)
