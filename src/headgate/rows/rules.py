"""Rules of rows for commits of engines: what they must satisfy, and the verdict on them.

A commit is validated once, before its publication, on the picture after it, by the validator of
mutate, load and merge. The engine wrote the files, so a server reads them in an evaluator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate import errors
from headgate.model import rules
from headgate.model.access import ReadPolicy
from headgate.model.constraints import Enforce
from headgate.model.contexts import BranchContext
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.rows.branch_tables import BranchTable, BranchTables, reads_of
from headgate.rows.outcome import Parts
from headgate.rows.write import keys_hold, provenance_of
from headgate.tables.constraints import REFERRING_PROPERTY, enforcement_of, is_ruled, keeps_rules
from headgate.tables.metadata import Metadata
from headgate.tables.snapshots import current_snapshot, effect_between

if TYPE_CHECKING:
    from headgate.rows.evaluator_pool import EvaluatorPool
    from headgate.rows.working_set import WorkingSet

_LIMIT = 100
# Violations that a transaction records.
_RECORDED = 10
_HIDDEN = "a table that this token may not read"


def validate(working: WorkingSet, commits: Sequence[rules.ChangedTable]) -> rules.Json:
    """Return the violations of commits on the picture after all of them, and the tables read."""
    from headgate.rows.validate import violations_of_commits  # noqa: PLC0415  (an optional extra)

    found = [
        {"cause": str(name), "text": violation.text, "violation": violation.to_json()}
        for name, violation in violations_of_commits(working, commits)
    ]
    return {"found": found, "read": [str(name) for name in working.tables]}


@dataclass(frozen=True, kw_only=True)
class _Commit:
    """One table of a publication, with its metadata before and after."""

    changed: rules.ChangedTable
    before: Metadata | None
    after: Metadata
    # What the branch shows.
    shown: BranchTable | None

    @property
    def is_known(self) -> bool:
        """True if the rows before the commit are known to satisfy the constraints after it."""
        if self.before is None or (current_snapshot(self.before) is None and not self.flag):
            return True
        held = self.shown is not None and keys_hold(self.shown)
        return held and keeps_rules(self.before, self.after)

    @property
    def enforced(self) -> Enforce:
        return _effective(self.after, is_known=self.is_known)

    @property
    def changes_rows(self) -> bool:
        """True if rows are added or removed; a rewrite of files by an engine is believed."""
        effect = effect_between(self.before, self.after)
        return effect.replaces or bool(effect.operations - {"replace"})

    @property
    def needs_validation(self) -> bool:
        is_referred = REFERRING_PROPERTY in (self.after.get("properties") or {})
        return self.changes_rows and (is_referred or self.enforced is not Enforce.OFF)

    @property
    def flag(self) -> rules.Json | None:
        """The violations that are known already; they remain until all rows were validated."""
        found = provenance_of(self.shown) if self.shown is not None else {}
        return found[rules.RULES_FACT] if rules.is_flagged(found) else None

    @property
    def unvalidated(self) -> rules.Json:
        """Return the state of the rows after the publication if they are not validated."""
        return self.flag or {"state": rules.UNKNOWN}

    @property
    def fact(self) -> rules.Json:
        """Return the state of the rows after the publication if it adds no violation."""
        is_checked = self.enforced is not Enforce.OFF or not self.changes_rows
        return {"state": rules.HOLD} if self.is_known and is_checked else self.unvalidated


def _effective(metadata: Metadata, *, is_known: bool) -> Enforce:
    """Return what happens to a violation: nothing is rejected where older rows may have it too."""
    declared = enforcement_of(metadata)
    return Enforce.FLAG if declared is Enforce.REJECT and not is_known else declared


class CommitRules:
    """Validates commits: in this process, or in an evaluator of a server."""

    def __init__(self, parts: Parts, pool: EvaluatorPool | None) -> None:
        self._parts = parts
        self._pool = pool

    def __call__(
        self,
        context: BranchContext,
        changed: Sequence[rules.ChangedTable],
        policy: ReadPolicy | None = None,
    ) -> rules.Verdict:
        """Raise `ConstraintsViolated` if a table that rejects violations would get one."""
        if not any(is_ruled(self._metadata(one.after)) for one in changed):
            return rules.Verdict()
        tables = BranchTables(self._parts.database, context)
        tables.prefetch(one.name for one in changed)
        commits = {
            str(one.name): _Commit(
                changed=one,
                before=self._metadata(one.before) if one.before is not None else None,
                after=self._metadata(one.after),
                shown=tables.find(one.name),
            )
            for one in changed
        }
        ruled = {name: one for name, one in commits.items() if is_ruled(one.after)}
        if not any(one.needs_validation for one in commits.values()):
            return rules.Verdict(facts=_facts({name: one.fact for name, one in ruled.items()}, []))
        moving = [one for one in commits.values() if one.changes_rows]
        try:
            done = self._validate(tables, [one.changed for one in moving])
        except (errors.NeedsSpark, errors.StatementStopped, errors.EvaluatorDied) as error:
            if rejecting := [one for one in moving if one.enforced is Enforce.REJECT]:
                name = str(rejecting[0].changed.name)
                reason = _reason(error, {one.after for one in changed})
                raise errors.RowsNotValidated(dataset=name, reason=reason) from error
            return rules.Verdict(facts=_facts({n: one.unvalidated for n, one in ruled.items()}, []))
        flagged, rejected = [], []
        for one in done["found"]:
            match self._enforced(tables, commits, one["violation"]["dataset"]):
                case Enforce.FLAG:
                    flagged.append(one)
                case Enforce.REJECT:
                    rejected.append(_shown_part(policy, one))
        if rejected:
            raise errors.ConstraintsViolated(
                violations=[one["violation"] for one in rejected[:_LIMIT]],
                texts=[one["text"] for one in rejected[:_LIMIT]],
                total=len(rejected),
                limit=_LIMIT,
            )
        others = [parse_dataset_name(name) for name in done["read"] if name not in commits]
        facts = _facts({name: one.fact for name, one in ruled.items()}, flagged)
        return rules.Verdict(reads=reads_of(map(tables.find, others), ()), facts=facts)

    def _metadata(self, location: str) -> Metadata:
        return self._parts.versions.read(location).metadata

    def _validate(self, tables: BranchTables, commits: Sequence[rules.ChangedTable]) -> rules.Json:
        if self._pool is not None:
            task = partial(validate, commits=commits)
            return self._pool.perform(self._parts, tables, task)
        try:
            from headgate.rows.working_set import WorkingSet  # noqa: PLC0415  (an optional extra)
        except ImportError as error:
            what = "validating the rows of commits"
            raise errors.MissingExtra(feature=what, extra="mutations") from error
        with WorkingSet(tables, self._parts.versions, self._parts.options) as working:
            return validate(working, commits)

    def _enforced(self, tables: BranchTables, commits: Mapping[str, _Commit], name: str) -> Enforce:
        """Return what happens to violations of a table's constraints, by whatever commit."""
        if name in commits:
            return commits[name].enforced
        shown = tables.load(parse_dataset_name(name))
        return _effective(self._metadata(shown.stored.location), is_known=keys_hold(shown))


def _facts(
    known: Mapping[str, rules.Json], flagged: Iterable[rules.Json]
) -> dict[DatasetName, Mapping[str, Any]]:
    """Return the provenance of the transactions: what is known of the rows, and new violations."""
    facts = {name: dict(fact) for name, fact in known.items()}
    for one in flagged:
        fact = facts[one["cause"]]
        recorded = fact.get("violations", [])
        # With the dataset, by which tokens that may not read it are denied the text.
        found = {"dataset": one["violation"]["dataset"], "text": one["text"]}
        if found not in recorded:
            total = fact.get("total", 0) + 1
            recorded = [*recorded, found][:_RECORDED]
            fact |= {"state": rules.FLAGGED, "total": total, "violations": recorded}
    return {parse_dataset_name(name): {rules.RULES_FACT: fact} for name, fact in facts.items()}


def _shown_part(policy: ReadPolicy | None, found: rules.Json) -> rules.Json:
    """Return a violation without the names and values that a token may not read."""
    violation = found["violation"]
    target = violation.get("refers_to")
    if policy is None:
        return found
    if not policy.shows_dataset(violation["dataset"]):
        text = f"{found['cause']}: {_HIDDEN} refers to a removed row"
        return {**found, "text": text, "violation": {"dataset": found["cause"], "kind": "orphan"}}
    if target is None or policy.shows_dataset(target):
        return found
    kept = {name: value for name, value in violation.items() if name != "refers_to"}
    return {**found, "text": found["text"].removesuffix(target) + _HIDDEN, "violation": kept}


def _reason(error: errors.HeadgateError, committed: set[str]) -> str:
    """Return why rows could not be read; the address of another table may be hidden."""
    if error.facts.get("where") in committed:
        return str(error.facts["reason"])
    return error.without_addresses().message
