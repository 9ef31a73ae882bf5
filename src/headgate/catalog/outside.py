"""Operations with an effect outside the catalog: intent, effect, publication, clear.

Phase A records what will be done, B does it outside and confirms, C publishes, D clears. Whoever
dies in between leaves an intent that says all there is to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from headgate.catalog.database import Database
from headgate.catalog.intents import (
    Intent,
    IntentBody,
    OutsideTarget,
    after_recovery,
    body_from_json,
    clear_intent,
    confirm_effect,
    find_intent,
    record_intent,
    renew_intent,
)
from headgate.catalog.operations import find_receipt
from headgate.catalog.publish import publish, rehearse_in
from headgate.catalog.recovery import undo_all
from headgate.errors import (
    HeadgateError,
    IntentTakenOver,
    Invalid,
    RecoveryStopped,
    Unavailable,
)
from headgate.model.changes import (
    AddTransaction,
    IntentRef,
    MoveBranch,
    PublishRequest,
    Receipt,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import OperationId, mint_operation
from headgate.model.ports import Outside

# Handed to a person when an effect of ours lies under somebody else's.
REMEDY = (
    "Somebody else moved the outside branch on top of it. Look at that branch, bring it to where "
    "it should be, then run `headgate recover`."
)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One effect to be made outside: where, from which head, and the call that makes it."""

    target: Mapping[str, str]
    expected: str
    # Makes the effect and returns the outside's id of it.
    make: Callable[[], str]
    # That id, where it is known before: then a crash right after the effect is no riddle.
    planned: str | None = None


def publish_with_effects(
    database: Database,
    request: PublishRequest,
    effects: Sequence[Effect],
    outside: Outside,
    *,
    name: str,
    lease_seconds: int = 60,
) -> Receipt:
    """Makes the effects and the publication; a failure leaves both, or neither, or an intent."""
    operation = mint_operation()
    body = _body(request, effects)

    def announce(connection: Connection) -> IntentRef:
        rehearse_in(connection, request)
        return record_intent(
            connection,
            operation=operation,
            kind=name,
            actor=request.actor,
            branches=[change.branch for change in body.changes],
            body=body.to_json(),
            lease_seconds=lease_seconds,
        )

    ref = after_recovery(database, lambda: database.write(announce))
    reach(Failpoint.INTENT_RECORDED)
    try:
        _make(database, ref, body, effects)
        receipt = publish(database, replace(request, intent=ref), operation=operation)
    except HeadgateError as error:
        receipt = _compensate(database, ref, body, outside, operation, error)
    reach(Failpoint.INTENT_PUBLISHED)
    # Recovery may have cleared it in the place of an owner that was only slow.
    with suppress(IntentTakenOver):
        database.write(lambda connection: clear_intent(connection, ref))
    return receipt


def _body(request: PublishRequest, effects: Sequence[Effect]) -> IntentBody:
    changes = tuple(c for c in request.changes if isinstance(c, AddTransaction | MoveBranch))
    if len(changes) != len(request.changes):
        raise Invalid("an operation with an effect outside adds transactions or moves branches.")
    return IntentBody(
        kind=request.kind,
        changes=changes,
        outside=tuple(
            OutsideTarget(target=e.target, expected=e.expected, effect=e.planned) for e in effects
        ),
        attempt=request.attempt,
    )


def _make(database: Database, ref: IntentRef, body: IntentBody, effects: Sequence[Effect]) -> None:
    """Phase B: each effect is confirmed in the intent as soon as its id is known."""
    for position, effect in enumerate(effects):
        made = effect.make()
        reach(Failpoint.INTENT_EFFECT_DONE)
        outside = list(body.outside)
        outside[position] = replace(outside[position], effect=made)
        body = replace(body, outside=tuple(outside))
        database.write(partial(confirm_effect, ref=ref, body=body.to_json()))
        reach(Failpoint.INTENT_CONFIRMED)


def _compensate(
    database: Database,
    ref: IntentRef,
    planned: IntentBody,
    outside: Outside,
    operation: OperationId,
    error: HeadgateError,
) -> Receipt:
    """The receipt if it was published after all; else undoes every effect, or none, and raises."""
    try:
        intent, receipt = database.write(lambda c: _stand(c, ref, operation))
    except Unavailable:
        # Nothing can be known now: effects and intent stay as they are, recovery will look.
        raise error from None
    if receipt is not None:
        return receipt
    if intent is not None and intent.ref != ref:
        raise error
    # Without an intent recovery rolled it back: an effect that came later is nobody's but ours.
    body = body_from_json(intent.body) if intent is not None and intent.body else planned
    if not undo_all(body.outside, outside):
        raise RecoveryStopped(
            operation=operation, classification=f"refused ({error.code})", remedy=REMEDY
        ) from error
    if intent is not None:
        database.write(lambda connection: clear_intent(connection, ref))
    raise error


def _stand(
    connection: Connection, ref: IntentRef, operation: OperationId
) -> tuple[Intent | None, Receipt | None]:
    """Where an operation stands that was refused; an intent that is still ours is renewed."""
    intent = find_intent(connection, ref.id)
    if intent is not None and intent.ref == ref:
        renew_intent(connection, ref)
    return intent, find_receipt(connection, operation)
