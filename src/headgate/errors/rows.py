"""What a mutation, a load or a merge can meet in its own input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from headgate.errors.families import Conflict, Invalid

_SHOWN = 10


class InvalidScript(Invalid):
    """A statement that cannot be read, or means nothing on this branch; nothing was changed."""

    code = "invalid_script"

    def __init__(self, *, line: int, column: int, reason: str) -> None:
        super().__init__(
            f"line {line}, column {column}: {reason.rstrip('. ')}. Nothing was changed.",
            line=line,
            column=column,
            reason=reason,
        )


class UnknownTable(Invalid):
    """A statement names a table that the branch does not show."""

    code = "unknown_table"

    def __init__(
        self, *, table: str, context: str, near: Sequence[str], line: int, column: int
    ) -> None:
        hint = f" Did you mean {near[0]!r}?" if near else " `headgate dataset list` shows them."
        super().__init__(
            f"line {line}, column {column}: {context!r} shows no table {table!r}.{hint} "
            f"To read through a fallback, write the branch as '{context}>FALLBACK'.",
            table=table,
            context=context,
            near=list(near),
            line=line,
            column=column,
        )


class InvalidSchemaFile(Invalid):
    """A schema file says what cannot be; nothing was changed."""

    code = "invalid_schema_file"

    def __init__(self, *, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {_ended(reason)}", file=file, line=line, reason=reason)


class ImpossibleSchemaChange(Invalid):
    """The table as it is cannot become what the schema file says."""

    code = "impossible_schema_change"

    def __init__(self, *, dataset: str, reason: str, remedy: str) -> None:
        super().__init__(f"{dataset}: {reason}. {remedy}", dataset=dataset, reason=reason)


class ConstraintsViolated(Invalid):
    """Rows break what the tables demand; nothing was changed."""

    code = "constraints_violated"

    def __init__(
        self, *, violations: Sequence[dict[str, Any]], texts: Sequence[str], total: int, limit: int
    ) -> None:
        more = f"\n… and {total - _SHOWN} more" if total > _SHOWN else ""
        # Each demand is looked at until so many rows were found to break it.
        least = "at least " if total >= limit else ""
        count = "1 violation" if total == 1 else f"{least}{total} violations"
        lines = "\n".join(f"  {text}" for text in texts[:_SHOWN])
        super().__init__(
            f"{count} of the tables' constraints; nothing was changed.\n{lines}{more}",
            violations=list(violations),
            total=total,
        )


class InvalidRows(Invalid):
    """A source holds rows that its table cannot take; nothing was loaded."""

    code = "invalid_rows"

    def __init__(self, *, rows: Sequence[dict[str, Any]], limit: int) -> None:
        lines = "\n".join(
            f"  {row['file']}:{row['line']}: {row['reason']}" for row in rows[:_SHOWN]
        )
        more = "" if len(rows) <= _SHOWN else f"\n… and {len(rows) - _SHOWN} more"
        least = "at least " if len(rows) >= limit else ""
        count = f"{least}{len(rows)} row" + ("" if len(rows) == 1 else "s")
        super().__init__(
            f"{count} cannot be loaded; nothing was changed.\n{lines}{more}", rows=list(rows)
        )


class InvalidSource(Invalid):
    """A file that cannot be read as what it claims to be."""

    code = "invalid_source"

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(f"{file}: {_ended(reason)}", file=file, reason=reason)


class MergeConflict(Conflict):
    """Two branches changed the same things differently; the target is as it was."""

    code = "merge_conflict"

    def __init__(self, *, source: str, target: str, conflicts: Sequence[dict[str, Any]]) -> None:
        lines = "\n".join(f"  {conflict['reason']}" for conflict in conflicts[:_SHOWN])
        more = "" if len(conflicts) <= _SHOWN else f"\n… and {len(conflicts) - _SHOWN} more"
        count = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
        super().__init__(
            f"{source!r} into {target!r}: {count}; nothing was changed. Settle them on one of the "
            f"branches, then merge again.\n{lines}{more}",
            source=source,
            target=target,
            conflicts=list(conflicts),
        )


class RowsChanged(Conflict):
    """Rows that a statement would update or delete were changed by somebody else meanwhile."""

    # The code is that of every lost race for a branch; this tells it from the others.
    REASON: ClassVar[str] = "rows_changed"

    def __init__(self, *, mismatch: dict[str, Any], conflicts: Sequence[dict[str, Any]]) -> None:
        super().__init__(
            f"somebody else changed rows of {mismatch['table_key']} that this script updates or "
            "deletes, after it read them; nothing was changed. Read them again and decide.",
            manifest_conflict=mismatch,
            conflicts=list(conflicts),
            reason=self.REASON,
        )


def _ended(reason: str) -> str:
    """A reason as a sentence, whatever it ended with."""
    told = reason.rstrip(". ")
    return told if told.endswith("?") else f"{told}."
