"""Rules of rows for commits of engines: what they must satisfy, and the verdict on them.

A commit is validated once, before its publication, on the picture after it, by the validator of
mutate, load and merge. The engine wrote the files, so a server reads them in an evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from headgate import errors
from headgate.model.access import ReadPolicy
from headgate.model.constraints import Enforce, Violation, ViolationKind
from headgate.model.contexts import BranchContext
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.rules import (
    FLAGGED,
    HOLD,
    RULES_FACT,
    UNKNOWN,
    ChangedTable,
    Verdict,
    rows_hold,
)
from headgate.rows.branch_tables import BranchTable, BranchTables, reads_of
from headgate.rows.outcome import Parts
from headgate.tables.constraints import (
    REFERRING_PROPERTY,
    RULE_PROPERTIES,
    constraints_of,
    enforcement_of,
    keeps_rules,
)
from headgate.tables.metadata import Metadata
from headgate.tables.snapshots import current_snapshot, effect_between

if TYPE_CHECKING:
    from headgate.rows.evaluator_pool import EvaluatorPool
    from headgate.rows.working_set import WorkingSet

_LIMIT = 100
# Violations that a transaction records.
_RECORDED = 10


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The violations of commits, each with the table whose commit causes it."""

    violations: Sequence[tuple[DatasetName, Violation]] = ()
    # All tables that were read.
    read: Sequence[DatasetName] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "violations": [[str(name), asdict(found)] for name, found in self.violations],
            "read": [str(name) for name in self.read],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            violations=[
                (parse_dataset_name(name), _violation(one)) for name, one in document["violations"]
            ],
            read=[parse_dataset_name(name) for name in document["read"]],
        )


def _violation(document: Mapping[str, Any]) -> Violation:
    return Violation(
        dataset=document["dataset"],
        kind=ViolationKind(document["kind"]),
        columns=tuple(document["columns"]),
        values=tuple(document["values"]),
        detail=document["detail"],
    )


def validate(working: WorkingSet, commits: Sequence[ChangedTable]) -> Validated:
    """Return the violations of commits on the picture after all of them."""
    from headgate.rows.validate import violations_of_commits  # noqa: PLC0415  (an optional extra)

    found = violations_of_commits(working, commits)
    return Validated(violations=found, read=tuple(working.tables))


@dataclass(frozen=True, kw_only=True)
class _Commit:
    """One table of a publication, with its metadata before and after."""

    changed: ChangedTable
    before: Metadata | None
    after: Metadata
    # What the branch shows.
    shown: BranchTable | None

    @property
    def enforced(self) -> Enforce:
        return _effective(self.after, self.is_known)

    @property
    def is_known(self) -> bool:
        """Whether the rows before the commit are known to satisfy the constraints after it."""
        if self.before is None or current_snapshot(self.before) is None:
            return True
        return _is_known(self.shown) and keeps_rules(self.before, self.after)

    @property
    def changes_rows(self) -> bool:
        """Whether rows are added or removed; a rewrite of files by an engine is believed."""
        effect = effect_between(self.before, self.after)
        return effect.replaces or bool(effect.operations - {"replace"})

    def check(self) -> None:
        """Raise for properties that no reader of the table could understand."""
        try:
            constraints_of(self.after)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise errors.Invalid(
                f"table {self.changed.name}: its constraints in the property "
                f"headgate.constraints are malformed ({error!r}). Set them by `headgate schema "
                "apply`.",
                dataset=str(self.changed.name),
            ) from error


def _is_known(shown: BranchTable | None) -> bool:
    return shown is not None and shown.shown is not None and rows_hold(shown.shown.provenance)


def _effective(metadata: Metadata, is_known: bool) -> Enforce:
    """Return what happens to a violation: nothing is rejected where older rows may have it too."""
    declared = enforcement_of(metadata)
    return Enforce.FLAG if declared is Enforce.REJECT and not is_known else declared


def is_ruled(metadata: Metadata) -> bool:
    """Return whether commits to the table can break constraints, of its own or of others."""
    return not RULE_PROPERTIES.isdisjoint(metadata.get("properties") or {})


class CommitRules:
    """Validates commits: in this process, or in an evaluator of a server."""

    def __init__(self, parts: Parts, pool: EvaluatorPool | None) -> None:
        self._parts = parts
        self._pool = pool

    def __call__(
        self,
        context: BranchContext,
        changed: Sequence[ChangedTable],
        policy: ReadPolicy | None = None,
    ) -> Verdict:
        """Raise `ConstraintsViolated` if a table that rejects violations would get one."""
        read = self._parts.versions.read
        pairs = [
            (one, read(one.before).metadata if one.before else None, read(one.after).metadata)
            for one in changed
        ]
        if not any(is_ruled(after) for _, _, after in pairs):
            return Verdict()
        tables = BranchTables(self._parts.database, context)
        tables.prefetch(one.name for one in changed)
        commits = [
            _Commit(changed=one, before=before, after=after, shown=tables.find(one.name))
            for one, before, after in pairs
        ]
        return self._judge(tables, commits, policy)

    def _judge(
        self, tables: BranchTables, commits: Sequence[_Commit], policy: ReadPolicy | None
    ) -> Verdict:
        for one in commits:
            one.check()
        states = {one.changed.name: _state(one) for one in commits if is_ruled(one.after)}
        moving = [one for one in commits if one.changes_rows]
        if not any(_needs_validation(one) for one in moving):
            return Verdict(facts=_facts(states))
        try:
            found = self._validate(tables, [one.changed for one in moving])
        except (errors.NeedsSpark, errors.StatementStopped, errors.EvaluatorDied) as error:
            if rejecting := [one for one in moving if one.enforced is Enforce.REJECT]:
                name = str(rejecting[0].changed.name)
                raise errors.RowsNotValidated(dataset=name, reason=error.message) from error
            return Verdict(facts=_facts(dict.fromkeys(states, UNKNOWN)))
        rejected: list[Violation] = []
        flagged: dict[DatasetName, list[Violation]] = {}
        for cause, violation in found.violations:
            match self._enforced(tables, commits, parse_dataset_name(violation.dataset)):
                case Enforce.REJECT:
                    rejected.append(_shown_to(policy, violation, cause))
                case Enforce.FLAG:
                    flagged.setdefault(cause, []).append(violation)
        if rejected:
            raise errors.ConstraintsViolated(
                violations=[one.to_json() for one in rejected[:_LIMIT]],
                texts=[one.text for one in rejected[:_LIMIT]],
                total=len(rejected),
                limit=_LIMIT,
            )
        written = {one.changed.name for one in commits}
        others = (tables.find(name) for name in found.read if name not in written)
        return Verdict(reads=reads_of(others, ()), facts=_facts(states, flagged))

    def _validate(self, tables: BranchTables, commits: Sequence[ChangedTable]) -> Validated:
        if self._pool is not None:
            return self._pool.validate(self._parts, tables, commits)
        try:
            from headgate.rows.working_set import WorkingSet  # noqa: PLC0415  (an optional extra)
        except ImportError as error:
            raise errors.MissingExtra(
                feature="validating the rows of commits", extra="mutations"
            ) from error
        with WorkingSet(tables, self._parts.versions, self._parts.options) as working:
            return validate(working, commits)

    def _enforced(
        self, tables: BranchTables, commits: Sequence[_Commit], name: DatasetName
    ) -> Enforce:
        """Return what happens to violations of a table's constraints, by whatever commit."""
        for one in commits:
            if one.changed.name == name:
                return one.enforced
        shown = tables.load(name)
        assert shown.version is not None
        metadata = self._parts.versions.read(shown.version.location).metadata
        return _effective(metadata, _is_known(shown))


def _needs_validation(commit: _Commit) -> bool:
    properties = commit.after.get("properties") or {}
    return commit.enforced is not Enforce.OFF or REFERRING_PROPERTY in properties


def _state(commit: _Commit) -> str:
    """Return what is known of the rows after a commit without violations."""
    is_checked = commit.enforced is not Enforce.OFF or not commit.changes_rows
    return HOLD if commit.is_known and is_checked else UNKNOWN


def _facts(
    states: Mapping[DatasetName, str],
    flagged: Mapping[DatasetName, Sequence[Violation]] | None = None,
) -> dict[DatasetName, Mapping[str, Any]]:
    """Return the provenance of the transactions."""
    facts: dict[DatasetName, Mapping[str, Any]] = {
        name: {RULES_FACT: {"state": state}} for name, state in states.items()
    }
    for name, found in (flagged or {}).items():
        texts = [one.text for one in found[:_RECORDED]]
        facts[name] = {RULES_FACT: {"state": FLAGGED, "violations": texts, "total": len(found)}}
    return facts


def _shown_to(policy: ReadPolicy | None, violation: Violation, cause: DatasetName) -> Violation:
    """Return a violation without values that the caller may not read."""
    if policy is None or policy.shows_dataset(violation.dataset):
        return violation
    return Violation(dataset=str(cause), kind=ViolationKind.HIDDEN, columns=(), values=())
