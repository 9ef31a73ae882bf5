"""The rows that a publication leaves: its transactions, its number, its moves."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, update

from headgate.catalog.picture import Picture
from headgate.catalog.rows import dump
from headgate.catalog.schema import (
    log_counter,
    moves,
    publications,
    transactions,
    working_objects,
)
from headgate.model.ids import Instant, OperationId, PublicationNumber
from headgate.model.nouns import TransactionState


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
    statement = (
        update(transactions)
        .where(transactions.c.id == bindparam("the_id"))
        .values(state=TransactionState.COMMITTED, closed_at=at, publication=number)
    )
    plain = [c for c in picture.committed if c.provenance is None]
    known = [(c, c.provenance) for c in picture.committed if c.provenance is not None]
    if plain:
        connection.execute(
            statement.values(type=bindparam("the_type")),
            [{"the_id": c.id, "the_type": c.type} for c in plain],
        )
    if known:
        connection.execute(
            statement.values(
                type=bindparam("the_type"),
                inputs_key=bindparam("the_inputs_key"),
                build_key=bindparam("the_build_key"),
                adoptable=bindparam("the_adoptable"),
                provenance=bindparam("the_provenance"),
            ),
            [
                {
                    "the_id": c.id,
                    "the_type": c.type,
                    "the_inputs_key": p.inputs_key,
                    "the_build_key": p.build_key,
                    "the_adoptable": int(p.adoptable),
                    "the_provenance": dump(dict(p.facts)),
                }
                for c, p in known
            ],
        )
    connection.execute(
        delete(working_objects).where(
            working_objects.c.transaction_id.in_([c.id for c in picture.committed])
        )
    )


def write_publication(
    connection: Connection,
    picture: Picture,
    operation: OperationId,
    number: PublicationNumber,
    at: Instant,
) -> None:
    connection.execute(
        update(log_counter).where(log_counter.c.id == 1).values(number=number, last_at=at)
    )
    connection.execute(
        insert(publications).values(
            number=number,
            at=at,
            actor=picture.request.actor,
            kind=picture.request.kind,
            operation_id=operation,
        )
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
