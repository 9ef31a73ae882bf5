"""What a staged version asks of the one door: a transaction on its branch, made where missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.model.adding import add_on_branch
from headgate.model.changes import Change, Provenance
from headgate.model.nouns import TransactionType, Version
from headgate.mutations.counts import Counts
from headgate.mutations.ground import Ground, Standing
from headgate.mutations.picture import PlainMove
from headgate.mutations.staging import Staged

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
