"""Rules of rows: the tables of a publication that an engine wrote, and the verdict on them.

`rows/rules.py` validates them. The packages below it call it through the protocol here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from headgate.model.changes import ReadView
from headgate.model.contexts import BranchContext
from headgate.model.names import DatasetName

if TYPE_CHECKING:
    from headgate.model.access import ReadPolicy

# The provenance key of a transaction that an engine wrote: its state, and the violations in it.
RULES_FACT = "rules"
HOLD, UNKNOWN, FLAGGED = "hold", "unknown", "flagged"
# The provenance key of a transaction that names its verb and its counts.
MUTATION_FACT = "mutation"
# Within that fact: the verb validated its rows, on rows that were known to satisfy the constraints.
KEYS_HOLD = "keys_hold"


Json: TypeAlias = dict[str, Any]


def rows_hold(provenance: Mapping[str, Any]) -> bool:
    """Return whether all rows of a transaction are known to satisfy the table's constraints."""
    rules = provenance.get(RULES_FACT)
    if rules is not None:
        return bool(rules["state"] == HOLD)
    return bool((provenance.get(MUTATION_FACT) or {}).get(KEYS_HOLD))


def rules_note(provenance: Mapping[str, Any]) -> str | None:
    """Return what readers must know of rows that may violate constraints."""
    rules = provenance.get(RULES_FACT) or {"state": HOLD}
    if rules["state"] == FLAGGED:
        # Those of tables that the reader may not see are left out.
        shown = [f": {one['text']}" for one in rules["violations"][:1]]
        return "".join([f"rows violate constraints ({rules['total']})", *shown])
    return "rows not validated" if rules["state"] == UNKNOWN else None


def carried_facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a transaction that shows the same version inherits about its rows."""
    if rows_hold(provenance):
        return {RULES_FACT: {"state": HOLD}}
    return {RULES_FACT: provenance[RULES_FACT]} if RULES_FACT in provenance else {}


def is_flagged(provenance: Mapping[str, Any]) -> bool:
    """Return whether rows of a transaction are known to violate the table's constraints."""
    return bool((provenance.get(RULES_FACT) or {}).get("state") == FLAGGED)


def inherited_facts(before: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a transaction that keeps rows of the one before it.

    What is recorded about the rows remains until all of them were validated.
    """
    kept = {} if rows_hold(before) or rows_hold(facts) else carried_facts(before)
    return {**kept, **facts}


@dataclass(frozen=True, kw_only=True)
class ChangedTable:
    """One table of a publication: where its metadata was and will be."""

    name: DatasetName
    # None for a new table.
    before: str | None
    after: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a publication must check and record, once its rows are validated."""

    # The tables that validation read and the publication does not write.
    reads: tuple[ReadView, ...] = ()
    # Provenance of the new transactions.
    facts: Mapping[DatasetName, Mapping[str, Any]] = field(default_factory=dict)


class RowRules(Protocol):
    """Validates the tables of a publication on the picture after it."""

    def __call__(
        self,
        context: BranchContext,
        changed: Sequence[ChangedTable],
        policy: ReadPolicy | None = None,
    ) -> Verdict:
        """Raise `ConstraintsViolated` if a table that rejects violations would get one."""
        ...
