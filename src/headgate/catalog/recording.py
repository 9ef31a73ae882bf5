"""The rows that a publication leaves: its transactions, its number, its moves."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, update

from headgate.catalog.chunks import in_chunks
from headgate.catalog.picture import Picture
from headgate.catalog.rows import dump
from headgate.catalog.schema import (
    log_counter,
    moves,
    publications,
    transactions,
    units,
    working_objects,
)
from headgate.model.ids import Instant, OperationId, PublicationNumber
from headgate.model.nouns import TransactionState

# Built once: making a statement costs more than running it.
_CLOSE = (
    update(transactions)
    .where(transactions.c.id == bindparam("the_id"))
    .values(
        state=TransactionState.COMMITTED,
        closed_at=bindparam("the_time"),
        publication=bindparam("the_publication"),
        type=bindparam("the_type"),
    )
)
_CLOSE_WITH_PROVENANCE = _CLOSE.values(
    inputs_key=bindparam("the_inputs_key"),
    build_key=bindparam("the_build_key"),
    adoptable=bindparam("the_adoptable"),
    provenance=bindparam("the_provenance"),
)
_FORGET_OBJECTS = delete(working_objects).where(
    working_objects.c.transaction_id.in_(bindparam("ids", expanding=True))
)
_COUNT = (
    update(log_counter)
    .where(log_counter.c.id == 1)
    .values(number=bindparam("the_number"), last_at=bindparam("the_time"))
)


def added_rows(picture: Picture, number: PublicationNumber, at: Instant) -> list[dict[str, object]]:
    return [
        {
            "id": t.id,
            "dataset_id": t.branch.dataset_id,
            "branch_id": t.branch.id,
            "branch_name": t.branch.name,
            "parent_id": t.parent,
            "depth": t.depth,
            "jump_id": t.jump,
            "type": t.type,
            "state": TransactionState.COMMITTED,
            "version_id": t.version.id if t.version else None,
            "actor": picture.request.on_behalf_of or picture.request.actor,
            "opened_at": at,
            "closed_at": at,
            "attempt_key": picture.request.attempt.key if picture.request.attempt else None,
            "attempt_epoch": picture.request.attempt.epoch if picture.request.attempt else None,
            "publication": number,
            "inputs_key": t.provenance.inputs_key,
            "build_key": t.provenance.build_key,
            "adoptable": int(t.provenance.adoptable),
            "provenance": dump(dict(t.provenance.facts)),
        }
        for t in picture.added
    ]


def close_committed(
    connection: Connection, picture: Picture, number: PublicationNumber, at: Instant
) -> None:
    same = {"the_time": at, "the_publication": number}
    plain = [
        {**same, "the_id": c.id, "the_type": c.type}
        for c in picture.committed
        if c.provenance is None
    ]
    known = [
        {
            **same,
            "the_id": c.id,
            "the_type": c.type,
            "the_inputs_key": c.provenance.inputs_key,
            "the_build_key": c.provenance.build_key,
            "the_adoptable": int(c.provenance.adoptable),
            "the_provenance": dump(dict(c.provenance.facts)),
        }
        for c in picture.committed
        if c.provenance is not None
    ]
    if plain:
        connection.execute(_CLOSE, plain)
    if known:
        connection.execute(_CLOSE_WITH_PROVENANCE, known)
    if picture.units:
        connection.execute(
            update(units)
            .where(units.c.id.in_(picture.units))
            .values(state=TransactionState.COMMITTED)
        )
    for part in in_chunks(c.id for c in picture.committed):
        connection.execute(_FORGET_OBJECTS, {"ids": part})


def write_publication(
    connection: Connection,
    picture: Picture,
    operation: OperationId,
    number: PublicationNumber,
    at: Instant,
) -> None:
    connection.execute(_COUNT, {"the_number": number, "the_time": at})
    connection.execute(
        insert(publications),
        {
            "number": number,
            "at": at,
            "actor": picture.request.actor,
            "kind": picture.request.kind,
            "operation_id": operation,
        },
    )
    connection.execute(
        insert(moves),
        [
            {
                "publication": number,
                "ordinal": ordinal,
                "dataset_id": move.branch.dataset_id,
                "branch_id": move.branch.id,
                "branch_name": move.branch.name,
                "from_id": move.from_view,
                "to_id": move.to_view,
                "change": move.change,
            }
            for ordinal, move in enumerate(picture.moves)
        ],
    )
