"""Errors in scripts, schema files, sources and rows, and conflicts between rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar
from typing import Any

from headgate.errors.families import Conflict, Invalid

_SHOWN = 10


class InvalidScript(Invalid, code="invalid_script"):
    template = "line {line}, column {column}: {reason:.} Nothing was changed."
    line: int
    column: int
    reason: str


class UnknownTable(Invalid, code="unknown_table"):
    template = (
        "line {line}, column {column}: Table does not exist: {table} on {context}. {hint} "
        "To read through a fallback, write the branch as '{context}>FALLBACK'."
    )
    table: str
    context: str
    near: Sequence[str]
    line: int
    column: int

    @property
    def hint(self) -> str:
        if self.near:
            return f"Did you mean {self.near[0]!r}?"
        return "`headgate dataset list` shows all datasets."


class InvalidSchemaFile(Invalid, code="invalid_schema_file"):
    template = "{file}:{line}: the schema file is invalid: {reason:.}"
    file: str
    line: int
    reason: str


class ImpossibleSchemaChange(Invalid, code="impossible_schema_change"):
    template = "the schema of {dataset} cannot be changed: {reason:.} {remedy}"
    dataset: str
    reason: str
    remedy: InitVar[str]


class ConstraintsViolated(Invalid, code="constraints_violated"):
    """Rows violate constraints of their tables; nothing was changed."""

    def __init__(
        self, *, violations: Sequence[dict[str, Any]], texts: Sequence[str], total: int, limit: int
    ) -> None:
        count = _count(total, "violation", limit)
        super().__init__(
            f"{count} of the tables' constraints; nothing was changed.\n{_lines(texts, total)}",
            violations=list(violations),
            total=total,
        )


class RowsNotValidated(Invalid, code="rows_not_validated"):
    template = (
        "table {dataset} rejects rows that violate its constraints, and the rows of this commit "
        "could not be validated: {reason:.} Nothing was changed. Commit fewer rows at a time, or "
        "set the table property headgate.enforce to 'flag'."
    )
    dataset: str
    reason: InitVar[str]


class InvalidRows(Invalid, code="invalid_rows"):
    """A source has rows that do not fit its table; nothing was loaded."""

    def __init__(self, *, rows: Sequence[dict[str, Any]], limit: int) -> None:
        texts = [f"{row['file']}:{row['line']}: {row['reason']}" for row in rows]
        count = _count(len(rows), "row", limit)
        super().__init__(
            f"{count} cannot be loaded; nothing was changed.\n{_lines(texts, len(rows))}",
            rows=list(rows),
        )


class InvalidSource(Invalid, code="invalid_source"):
    template = "{file} cannot be loaded: {reason:.}"
    file: str
    reason: str


class StatementStopped(Invalid, code="statement_stopped"):
    template = (
        "the statement {reason}, and was stopped; nothing was changed. The limit is "
        "[server] {setting} = {limit} of this server. Give it fewer rows at a time, or use Spark: "
        "load and optimize have --engine spark."
    )
    setting: str
    limit: float
    reason: InitVar[str]


class EvaluatorDied(Invalid, code="evaluator_died"):
    template = (
        "the process that read the rows or ran the script {how}; nothing was changed, and the "
        "server continues. The input is damaged, or it triggers a defect of a library: check it, "
        "then send it in smaller parts."
    )
    how: str


class MergeConflict(Conflict, code="merge_conflict"):
    """Two branches changed the same rows or files differently; the target is unchanged."""

    def __init__(self, *, source: str, target: str, conflicts: Sequence[dict[str, Any]]) -> None:
        texts = [str(conflict["reason"]) for conflict in conflicts]
        super().__init__(
            f"{source!r} into {target!r}: {_count(len(texts), 'conflict')}; nothing was changed. "
            "Resolve them on one of the branches, then merge again.\n"
            f"{_lines(texts, len(texts))}",
            source=source,
            target=target,
            conflicts=list(conflicts),
        )


class RowsChanged(Conflict):
    """Another writer changed rows that a statement updates or deletes."""

    # All lost races for a branch share one code; this fact distinguishes it.
    REASON = "rows_changed"

    def __init__(self, *, mismatch: dict[str, Any], conflicts: Sequence[dict[str, Any]]) -> None:
        super().__init__(
            f"another writer changed rows of {mismatch['table_key']} that this script updates or "
            "deletes, after it read them; nothing was changed. Read them again, then decide.",
            manifest_conflict=mismatch,
            conflicts=list(conflicts),
            reason=self.REASON,
        )


def _count(total: int, noun: str, limit: int | None = None) -> str:
    """Return how many there are; a search that reached its limit found at least so many."""
    least = "at least " if limit is not None and total >= limit else ""
    return f"{least}{total} {noun}" + ("" if total == 1 else "s")


def _lines(texts: Sequence[str], total: int) -> str:
    """Return the first texts, indented, and the number of the others."""
    lines = [f"  {text}" for text in texts[:_SHOWN]]
    return "\n".join([*lines, f"… and {total - _SHOWN} more"] if total > _SHOWN else lines)
