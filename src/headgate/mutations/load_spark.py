"""`load --engine spark`: the same outcome as Arrow's, by Spark, in a unit of transactions.

The unit holds the tables that are written, so nobody takes them away meanwhile. Lost is only what
validation looked at: then the rows that are staged are validated again, and not loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from headgate.attempts.committing import CommitOptions, Contents, commit_transactions
from headgate.attempts.pulse import Pulse
from headgate.catalog.database import Connection
from headgate.catalog.find import load_transactions
from headgate.catalog.operations import do_once
from headgate.catalog.tickets import Ticket, release_ticket, take_ticket, wait_for_turn
from headgate.catalog.units import Unit, abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.errors import (
    HeadgateError,
    Invalid,
    InvalidSource,
    OpenTransactionAlreadyExists,
    ViewConflict,
)
from headgate.model.changes import Provenance, ReadView, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction
from headgate.mutations.counts import Counts
from headgate.mutations.ground import Ground, Standing, branch_context
from headgate.mutations.load import LoadMode
from headgate.mutations.load_spark_checks import Validated, validate
from headgate.mutations.load_spark_files import Given, as_files
from headgate.mutations.load_spark_refusing import refuse_files, refuse_violations
from headgate.mutations.load_spark_tables import (
    StagedRows,
    TableLoad,
    counts_of,
    stage_by_spark,
    table_load,
)
from headgate.mutations.parts import Outcome, Parts, Request
from headgate.mutations.performing import (
    LOSSES_BEFORE_TICKET,
    TRIES_AT_LEAST,
    check_heads,
    check_may_write,
    noted,
    reads_of_heads,
    recall,
)
from headgate.mutations.sources import Place
from headgate.mutations.steps import fact

Session = Callable[[str], Any]

_LEASE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class _Loading:
    """One load on its way: what is asked for, with what, and what is open for it."""

    parts: Parts
    request: Request
    given: Given
    mode: LoadMode
    session: Session
    contents: Contents
    unit: Unit
    opened: Mapping[DatasetName, Transaction]
    deadline: float

    def ground(self) -> Ground:
        """The tables as the branch shows them now; those written cannot have moved."""
        ground = Ground(self.parts.database, branch_context(self.request.branch))
        ground.look([*self.given, *self.request.if_heads])
        return ground


def load_by_spark(
    parts: Parts,
    request: Request,
    given: Mapping[DatasetName, Sequence[Place]],
    mode: LoadMode,
    *,
    session: Session,
    contents: Contents,
) -> Outcome:
    """Stages every table in one unit, validates all of it, and publishes it at once."""
    if branch_context(request.branch).fallbacks:
        raise Invalid("Spark loads into a branch; make it first, with `headgate branch create`.")
    check_may_write(parts, request)
    done: dict[str, Outcome] = {}

    def act() -> Receipt:
        with (
            noted(parts, request),
            as_files(given) as files,
            _opened(parts, request, files, mode, session, contents) as loading,
        ):
            receipt, done["outcome"] = _carry_out(loading)
        return receipt

    receipt = do_once(parts.database, request.operation, act)
    if "outcome" in done and not receipt.replayed:
        return done["outcome"]
    return recall(parts, receipt)


@contextmanager
def _opened(
    parts: Parts,
    request: Request,
    given: Given,
    mode: LoadMode,
    session: Session,
    contents: Contents,
) -> Iterator[_Loading]:
    """The tables held open; what was not committed in the end is aborted."""
    deadline = time.monotonic() + request.timeout_seconds
    context = branch_context(request.branch)
    ground = Ground(parts.database, context)
    ground.look([*given, *request.if_heads])
    standings = [ground.load(name) for name in given]
    check_heads(ground, request)
    unit = open_unit(
        parts.database, context.branch, actor=request.actor, lease_seconds=_LEASE_SECONDS
    )
    opened: dict[DatasetName, Transaction] = {}
    try:
        opened = _open(parts, request, unit, standings, deadline)
        with Pulse(partial(renew_unit, parts.database, unit.id)):
            yield _Loading(
                parts=parts,
                request=request,
                given=given,
                mode=mode,
                session=session,
                contents=contents,
                unit=unit,
                opened=opened,
                deadline=deadline,
            )
    finally:
        abort_unit_if_open(parts.database, unit.id, actor=request.actor)


def _open(
    parts: Parts, request: Request, unit: Unit, standings: Sequence[Standing], deadline: float
) -> dict[DatasetName, Transaction]:
    """All transactions, or none: whoever holds one of them open is waited for."""

    def work(connection: Connection) -> dict[DatasetName, Transaction]:
        return {
            s.dataset.name: open_in_unit(
                connection, unit, s.dataset, may_write_protected=request.may_write_protected
            )
            for s in standings
        }

    while True:
        try:
            return parts.database.write(work)
        except OpenTransactionAlreadyExists:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _carry_out(loading: _Loading) -> tuple[Receipt, Outcome]:
    ground = loading.ground()
    check_heads(ground, loading.request)
    session = loading.session(f"txn:{loading.unit.id}")
    tables = [
        table_load(loading.parts, ground, name, files, loading.mode)
        for name, files in loading.given.items()
    ]
    with _naming_bad_rows(loading, ground, tables):
        staged = {table.name: stage_by_spark(session, table) for table in tables}
    _refuse_other_encodings(tables, staged)
    counts = _counts(loading, session, ground, staged)
    receipt, losses = _until_passed(loading, session, staged, counts)
    told = {str(name): count for name, count in counts.items() if count}
    return receipt, Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts=told,
        losses=losses,
    )


@contextmanager
def _naming_bad_rows(
    loading: _Loading, ground: Ground, tables: Sequence[TableLoad]
) -> Iterator[None]:
    """Spark fails at the first row that it cannot write; all of them are looked for and named."""
    from headgate.spark.quiet import told_once  # noqa: PLC0415  (slow: Spark)

    try:
        with told_once():
            yield
    except HeadgateError:
        # That a file lacks the key is worth saying only of one that can be read.
        refuse_files(tables)
        raise
    except Exception as error:
        refuse_files(tables)
        try:
            _judge(loading, ground, tables)
        except HeadgateError:
            raise
        except Exception as again:
            # What cannot be read for writing cannot be read for judging either.
            error.add_note(f"and while its rows were judged: {again}")
        reason = str(error).split("\n", 1)[0]
        file = tables[0].files[0].file
        raise InvalidSource(file=file, reason=f"Spark: {reason}") from error


def _judge(loading: _Loading, ground: Ground, tables: Sequence[TableLoad]) -> None:
    session = loading.session(loading.request.branch)
    refuse_violations(loading.parts, session, ground, tables)


def _refuse_other_encodings(
    tables: Sequence[TableLoad], staged: Mapping[DatasetName, StagedRows]
) -> None:
    """Spark puts a character in place of bytes that are not UTF-8, and says nothing."""
    from headgate.spark.load_reading import holds_replacements  # noqa: PLC0415  (slow: Spark)

    text = [t for t in tables if any(file.format != "parquet" for file in t.files)]
    if any(holds_replacements(staged[table.name].rows) for table in text):
        refuse_files(tables)


def _counts(
    loading: _Loading, session: Any, ground: Ground, staged: Mapping[DatasetName, StagedRows]
) -> dict[DatasetName, Counts]:
    ids = [transaction.id for transaction in loading.opened.values()]
    found = loading.parts.database.read(lambda c: load_transactions(c, ids))
    return {
        name: counts_of(
            loading.parts, session, ground.load(name), found[loading.opened[name].id], rows
        )
        for name, rows in staged.items()
    }


def _until_passed(
    loading: _Loading,
    session: Any,
    staged: Mapping[DatasetName, StagedRows],
    counts: Mapping[DatasetName, Counts],
) -> tuple[Receipt, int]:
    """Validates and commits; validates again where others changed what was looked at."""
    losses, ticket = 0, None
    try:
        while True:
            ground = loading.ground()
            check_heads(ground, loading.request)
            judge = partial(_judge, loading, ground, [rows.table for rows in staged.values()])
            found = validate(loading.parts, session, ground, staged, judge)
            reach(Failpoint.MUTATION_STAGED)
            try:
                return _commit(loading, ground, counts, found), losses
            except ViewConflict:
                losses += 1
                over = time.monotonic() >= loading.deadline and losses >= TRIES_AT_LEAST
                if over or loading.request.timeout_seconds <= 0:
                    raise
            if losses >= LOSSES_BEFORE_TICKET and ticket is None:
                ticket = _queue(loading, found.reads)
    finally:
        if ticket is not None:
            release_ticket(loading.parts.database, ticket)


def _queue(loading: _Loading, looked: Sequence[ReadView]) -> Ticket:
    """A place among those who write the tables that validation looks at."""
    ticket = take_ticket(loading.parts.database, [read.branch for read in looked])
    left = max(0.0, loading.deadline - time.monotonic())
    wait_for_turn(loading.parts.database, ticket, seconds=left)
    return ticket


def _commit(
    loading: _Loading,
    ground: Ground,
    counts: Mapping[DatasetName, Counts],
    found: Validated,
) -> Receipt:
    opened = loading.opened
    ids = [transaction.id for transaction in opened.values()] if any(counts.values()) else []
    facts = {
        opened[name].id: Provenance(
            facts=fact(f"load-{loading.mode}", count, keys_hold=name in found.keys_hold)
        )
        for name, count in counts.items()
    }
    written = [ground.load(name).branch for name in opened]
    looked = {one.branch for one in found.reads} | {branch.id for branch in written if branch}
    return commit_transactions(
        loading.parts.database,
        loading.contents,
        # Without any effect nothing is committed, and the unit ends by being aborted.
        ids,
        CommitOptions(
            actor=loading.request.actor,
            operation=loading.request.operation,
            may_write_protected=loading.request.may_write_protected,
            provenance=facts,
            reads=(*found.reads, *reads_of_heads(ground, loading.request, looked)),
        ),
    )
