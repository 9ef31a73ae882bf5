"""`optimize --engine spark`: files are written together by Spark, off the branch.

The work is done on a child of the branch that only this optimize knows, in a unit that is never
committed: whoever writes the branch meanwhile waits for nobody. What Spark made of the files is
then published as without Spark, or has lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from headgate.attempts.pulse import Pulse
from headgate.catalog.branches import create_branch, delete_branches
from headgate.catalog.find import load_branch, load_transactions
from headgate.catalog.stage import stage_version
from headgate.catalog.units import Unit, abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.model.ids import mint_version
from headgate.model.nouns import Transaction, Version
from headgate.mutations.ground import Standing
from headgate.mutations.optimize import Rewrite, Rewriting
from headgate.mutations.parts import Parts, Request
from headgate.tables.compacting import SMALL_BYTES
from headgate.tables.constraints import constraints_of
from headgate.tables.shape import Metadata

Session = Callable[[str], Any]

_LEASE_SECONDS = 900


def rewriting_by_spark(request: Request, session: Session) -> Rewrite:
    """How `optimize` has its groups of files rewritten by Spark."""

    def rewrite(parts: Parts, asked: Rewriting) -> Metadata:
        with _aside(parts, request, asked.standing) as (unit, transaction):
            if asked.metadata is not asked.base.metadata:
                _stage(parts, asked, transaction)
            with Pulse(partial(renew_unit, parts.database, unit.id)):
                _compact(session(f"txn:{unit.id}"), asked)
            found = parts.database.read(lambda c: load_transactions(c, [transaction.id]))
            made = found[transaction.id].version
            assert made is not None
            return parts.versions.read(made.location).metadata

    return rewrite


def _compact(session: Any, asked: Rewriting) -> None:
    from headgate.spark.compact import Compaction, compact  # noqa: PLC0415  (slow: Spark)

    name = asked.standing.dataset.name
    spec = int(asked.metadata["default-spec-id"])
    held = {file.task.file.spec_id for group in asked.groups for file in group}
    compact(
        session,
        Compaction(
            namespace=name.namespace,
            name=name.name,
            sort=constraints_of(asked.metadata).key,
            small_bytes=SMALL_BYTES,
            everything=held != {spec},
        ),
    )


@contextmanager
def _aside(
    parts: Parts, request: Request, standing: Standing
) -> Iterator[tuple[Unit, Transaction]]:
    """A transaction on a child of the branch, which is gone again in the end."""
    assert standing.branch is not None and standing.shown is not None
    name = f"optimize/{secrets.token_hex(6)}"
    create_branch(
        parts.database,
        standing.dataset,
        name,
        parent=standing.branch.name,
        at=standing.shown.id,
        actor=request.actor,
    )
    unit = open_unit(parts.database, name, actor=request.actor, lease_seconds=_LEASE_SECONDS)
    try:
        yield unit, parts.database.write(lambda c: open_in_unit(c, unit, standing.dataset))
    finally:
        abort_unit_if_open(parts.database, unit.id, actor=request.actor)
        aside = parts.database.read(lambda c: load_branch(c, standing.dataset, name))
        delete_branches(parts.database, [aside], actor=request.actor)


def _stage(parts: Parts, asked: Rewriting, transaction: Transaction) -> None:
    """The table with its new layout, before files follow it."""
    held = transaction.version
    assert asked.standing.version is not None
    stored = parts.versions.write(asked.standing.dataset.id, asked.metadata)
    version = Version(
        id=mint_version(),
        location=stored.location,
        content_id=asked.standing.version.content_id,
    )
    stage_version(parts.database, transaction.id, version, expected=held.id if held else None)
