"""One change of many tables, prepared over a picture and shown by one publication.

Who loses the branch to somebody else prepares again on the new view, and after the second loss
takes a ticket; see `docs/adr/0030-re-preparing.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headgate.attempts import Pulse
from headgate.catalog.database import Connection
from headgate.catalog.operations import begin_operation, do_once, forget_operation, renew_operation
from headgate.catalog.publish import publish
from headgate.catalog.records import load_transactions
from headgate.catalog.tickets import (
    Ticket,
    is_waited_for,
    release_ticket,
    take_ticket,
    wait_for_turn,
)
from headgate.errors import (
    BranchExists,
    Mismatch,
    OpenTransactionAlreadyExists,
    RowsChanged,
    ViewConflict,
)
from headgate.model.changes import (
    Change,
    Provenance,
    PublishRequest,
    ReadView,
    Receipt,
    add_on_branch,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import BranchId, TransactionId, mint_operation
from headgate.model.names import DatasetName
from headgate.model.nouns import PublicationKind, TransactionType, Version
from headgate.rows.branch_tables import Ground, Standing, branch_context, check_unprotected
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.validate import Place, check_constraints
from headgate.rows.working_set import Picture, PlainMove, Staged, TableEffect, effect_of, stage

# What a staged version asks of the one door: a transaction on its branch, made where missing.

# Under this name a transaction's provenance says which verb made it and what it did.
FACT = "mutation"
# And under this one that no key is there twice: a merge by Spark need not look again.
_KEYS_HOLD = "keys_hold"


def fact(verb: str, counts: Counts, *, keys_hold: bool = False, **more: Any) -> dict[str, Any]:
    """What a transaction's provenance says of the verb that made it."""
    told = {_KEYS_HOLD: True} if keys_hold else {}
    return {FACT: {"verb": verb, "counts": counts.to_json(), **more, **told}}


def keys_hold(standing: Standing) -> bool:
    """Whether all who wrote the table up to now looked that no key is there twice."""
    found = standing.shown.provenance.get(FACT) if standing.shown is not None else None
    return bool(found and found.get(_KEYS_HOLD))


def steps_for(ground: Ground, staged: Staged, verb: str) -> list[Change]:
    """The changes that show a staged version."""
    effect = staged.effect
    table = effect.table
    # A merge may bring another key; that rows which were there have it only once, nobody looked.
    same_key = table.pointer is None and table.final is None
    hold = table.is_replaced or table.is_empty or keys_hold(table.standing)
    facts = fact(verb, effect.counts, keys_hold=same_key and hold)
    return add_version(
        ground,
        table.standing,
        version=staged.version,
        type=effect.type,
        facts={**facts, **table.facts},
    )


def steps_for_move(ground: Ground, move: PlainMove, verb: str) -> list[Change]:
    """The changes that show a version as it is."""
    facts = {**fact(verb, move.counts), **move.facts}
    return add_version(
        ground,
        move.standing,
        version=move.version,
        type=move.type,
        facts=facts,
        objects=move.objects,
    )


def add_version(
    ground: Ground,
    standing: Standing,
    *,
    version: Version | None,
    type: TransactionType,
    facts: Mapping[str, Any],
    objects: frozenset[str] = frozenset(),
) -> list[Change]:
    """A transaction on the context's own branch, which is made off the first fallback."""
    return add_on_branch(
        ground.context.branch,
        standing.dataset.id,
        branch=standing.branch,
        source=standing.source,
        type=type,
        version=version,
        objects=objects,
        provenance=Provenance(facts=facts),
    )


TRIES_AT_LEAST = 5
LOSSES_BEFORE_TICKET = 2


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a verb does to the picture, and how its losses are to be taken."""

    verb: str
    targets: Sequence[DatasetName]
    change: Callable[[Picture], None]
    # Updates and deletes: they may prepare again only while the rows they meet are the same.
    guards_rows: bool = False
    # Where a row comes from, for whoever has to mend it.
    place: Place = lambda dataset, number: {}
    # What is said of rows that break a constraint, where it is not the validator's own error.
    check: Callable[[Picture, Sequence[TableEffect]], None] | None = None
    kind: PublicationKind = PublicationKind.COMMIT
    # Prepare and check, and leave it at that.
    dry_run: bool = False


@dataclass(kw_only=True)
class _Trial:
    """What is remembered from one preparation to the next."""

    losses: int = 0
    conflict: ViewConflict | None = None
    met: tuple[tuple[str, tuple[int, int]], ...] | None = None
    ticket: Ticket | None = None


def perform(parts: Parts, request: Request, work: Work) -> Outcome:
    """Does the work once for each key: one publication, or none where nothing changes."""
    check_may_write(parts, request)
    if work.dry_run:
        with _pictured(parts, request, work) as picture:
            return _preview(picture, _effects(picture, work, _Trial()))
    outcome: dict[str, Outcome] = {}

    def act() -> Receipt:
        with noted(parts, request):
            receipt, done = _until_passed(parts, request, work)
        outcome["done"] = done
        return receipt

    receipt = do_once(parts.database, request.operation, act)
    if "done" in outcome and not receipt.replayed:
        return outcome["done"]
    return recall(parts, receipt)


def check_may_write(parts: Parts, request: Request) -> None:
    """Refuses a protected branch before any work is done for it."""
    check_unprotected(
        parts.database,
        branch_context(request.branch).branch,
        may_write_protected=request.may_write_protected,
    )


@contextmanager
def noted(parts: Parts, request: Request) -> Iterator[None]:
    """Those who ask for the key hear meanwhile that work on it is in progress."""
    key = request.operation
    if key is None:
        yield
        return
    parts.database.write(lambda c: begin_operation(c, mint_operation(), key))
    try:
        with Pulse(lambda: parts.database.write(lambda c: renew_operation(c, key))):
            yield
    except BaseException:
        parts.database.write(lambda c: forget_operation(c, key))
        raise


def _until_passed(parts: Parts, request: Request, work: Work) -> tuple[Receipt, Outcome]:
    deadline = time.monotonic() + request.timeout_seconds
    trial = _Trial()
    try:
        while True:
            _queue(parts, request, work, trial, deadline)
            try:
                return _once(parts, request, work, trial)
            except NotAsSeen:
                raise
            except (ViewConflict, BranchExists, OpenTransactionAlreadyExists) as conflict:
                trial.losses += 1
                if isinstance(conflict, ViewConflict):
                    trial.conflict = conflict
                over = time.monotonic() >= deadline and trial.losses >= TRIES_AT_LEAST
                if over or request.timeout_seconds <= 0:
                    raise
                if not isinstance(conflict, ViewConflict):
                    # Somebody holds it open: what helps is time.
                    time.sleep(min(0.05 * trial.losses, 1.0))
                    if time.monotonic() >= deadline:
                        raise
    finally:
        if trial.ticket is not None:
            release_ticket(parts.database, trial.ticket)


def _queue(parts: Parts, request: Request, work: Work, trial: _Trial, deadline: float) -> None:
    """Takes a ticket after the second loss, or at once where others already wait."""
    if trial.ticket is not None:
        return
    ground = Ground(parts.database, branch_context(request.branch))
    ground.look(work.targets)
    branches = [
        standing.branch.id
        for name in work.targets
        if (standing := ground.find(name)) is not None and standing.branch is not None
    ]
    crowded = parts.database.read(lambda c: is_waited_for(c, branches))
    if branches and (trial.losses >= LOSSES_BEFORE_TICKET or crowded):
        trial.ticket = take_ticket(parts.database, branches)
        left = max(0.0, deadline - time.monotonic())
        wait_for_turn(parts.database, trial.ticket, seconds=left)


def _once(parts: Parts, request: Request, work: Work, trial: _Trial) -> tuple[Receipt, Outcome]:
    with _pictured(parts, request, work) as picture:
        effects = _effects(picture, work, trial)
        reach(Failpoint.MUTATION_PREPARED)
        staged = [stage(parts.versions, effect) for effect in effects]
        reach(Failpoint.MUTATION_STAGED)
        return _publish(parts, request, work, picture, staged, trial)


def _pictured(parts: Parts, request: Request, work: Work) -> Picture:
    ground = Ground(parts.database, branch_context(request.branch))
    ground.look([*work.targets, *request.if_heads])
    check_heads(ground, request)
    return Picture(ground, parts.versions, parts.options)


def _effects(picture: Picture, work: Work, trial: _Trial) -> list[TableEffect]:
    """What the work makes of the tables, once it is known to be allowed."""
    work.change(picture)
    found = [effect_of(table) for table in picture.written]
    effects = [one for one in found if one.counts or one.table.pointer or one.table.final]
    _check_met(work, trial, effects)
    if work.check is not None:
        work.check(picture, effects)
    else:
        check_constraints(picture, effects, work.place)
    return effects


def _preview(picture: Picture, effects: Sequence[TableEffect]) -> Outcome:
    counts = {str(effect.table.name): effect.counts for effect in effects}
    counts |= {str(move.standing.dataset.name): move.counts for move in picture.moves}
    return Outcome(operation=mint_operation(), publication=None, counts=counts)


def check_heads(ground: Ground, request: Request) -> None:
    """Refuses at once where the branch does not show what the caller has seen."""
    wrong = [
        Mismatch(
            dataset=str(name),
            branch=ground.context.branch,
            field="view",
            expected=expected,
            actual=actual,
        )
        for name, expected in request.if_heads.items()
        if (actual := _view_of(ground, name)) != expected
    ]
    if wrong:
        raise NotAsSeen(wrong)


def reads_of_heads(
    ground: Ground, request: Request, besides: Collection[BranchId]
) -> tuple[ReadView, ...]:
    """What the caller has seen of tables that are not written: it must hold until the end."""
    found = [ground.find(name) for name in request.if_heads]
    branches = [standing.branch for standing in found if standing and standing.branch]
    return tuple(ReadView(branch=b.id, view=b.view) for b in branches if b.id not in besides)


class NotAsSeen(ViewConflict):
    """The caller's own condition does not hold: preparing again would only hide it."""


def _view_of(ground: Ground, name: DatasetName) -> TransactionId | None:
    standing = ground.find(name)
    return standing.branch.view if standing and standing.branch else None


def _check_met(work: Work, trial: _Trial, effects: Sequence[TableEffect]) -> None:
    if not work.guards_rows:
        return
    met = tuple((str(effect.table.name), effect.fingerprint()) for effect in effects)
    if trial.met is not None and met != trial.met and trial.conflict is not None:
        raise RowsChanged(
            mismatch=trial.conflict.facts["manifest_conflict"],
            conflicts=trial.conflict.facts["conflicts"],
        )
    trial.met = met


def _publish(
    parts: Parts,
    request: Request,
    work: Work,
    picture: Picture,
    staged: Sequence[Staged],
    trial: _Trial,
) -> tuple[Receipt, Outcome]:
    ground = picture.ground
    changes = [step for one in staged for step in steps_for(ground, one, work.verb)]
    changes += [step for move in picture.moves for step in steps_for_move(ground, move, work.verb)]
    standings = [one.effect.table.standing for one in staged]
    standings += [move.standing for move in picture.moves]
    moved: set[BranchId] = {one.branch.id for one in standings if one.branch is not None}
    reads = picture.reads(moved)
    looked = moved | {read.branch for read in reads}
    receipt = publish(
        parts.database,
        PublishRequest(
            actor=request.actor,
            kind=work.kind,
            changes=tuple(changes),
            reads=(*reads, *reads_of_heads(ground, request, looked)),
            operation=request.operation,
            may_write_protected=request.may_write_protected,
        ),
    )
    counts = _preview(picture, [one.effect for one in staged]).counts
    return receipt, Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts=counts,
        losses=trial.losses,
    )


def recall(parts: Parts, receipt: Receipt) -> Outcome:
    """The outcome that is on record for an operation, from the transactions that it made."""
    ids = [TransactionId(id) for id in receipt.transactions.values() if id is not None]

    def read(connection: Connection) -> dict[str, Counts]:
        found = load_transactions(connection, ids).values()
        return {
            str(one.dataset): Counts(**one.provenance[FACT]["counts"])
            for one in found
            if FACT in one.provenance
        }

    return Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts=parts.database.read(read),
        replayed=True,
    )
