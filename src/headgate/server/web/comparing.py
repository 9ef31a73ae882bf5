"""What differs between two branches or transactions of a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import MissingExtra, NeedsSpark
from headgate.files.difference import Change, ChangeKind
from headgate.handles.comparing import FilesDifference, compare_sides
from headgate.handles.reading import Sides, load_sides
from headgate.model.nouns import Transaction
from headgate.server.web.histories import code_of
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    card,
    cell,
    empty,
    field,
    form,
    hidden,
    size,
    table,
)
from headgate.server.web.showing import Shown
from headgate.server.web.visiting import Visit
from headgate.tables.comparing import Comparing, TableDifference
from headgate.tables.reading import type_text
from headgate.tables.rows import ChangedRow, Row
from headgate.tables.schema_changes import SchemaChanges

_SAMPLES = 10


def comparison(visit: Visit, shown: Shown) -> Markup:
    """Two sides, chosen by the visitor, and what leads from one to the other."""
    before = visit.asked("from", (shown.branch.parent if shown.branch else None) or "")
    after = visit.asked("to", shown.context)
    key = visit.asked("key")
    chooser = form(
        shown.at(),
        hidden("branch", shown.context),
        hidden("tab", "compare"),
        field("from", "From", before, hint="a branch or a transaction"),
        field("to", "To", after, hint="a branch or a transaction"),
        field("key", "Key", key, hint="the table's own"),
        label="What to compare",
        button="Compare",
    )
    if not before:
        hint = "Name a branch, a transaction, a chain a>b or a moment master@12 on each side."
        return card("Compare", chooser, empty("Choose what to compare with.", hint))
    sides = load_sides(visit.store, shown.dataset.name, before, after)
    columns = tuple(name.strip() for name in key.split(",") if name.strip())
    return join([card("Compare", chooser, _moved(sides)), difference(visit, sides, columns)])


def difference(visit: Visit, sides: Sides, key: Sequence[str] = ()) -> Markup:
    """Schema, counts and samples of what differs between two sides."""
    how = Comparing(options=visit.store.settings.environ, key=key, samples=_SAMPLES)
    try:
        found = compare_sides(visit.store, sides, how)
    except (MissingExtra, NeedsSpark) as reason:
        return empty("These rows cannot be compared here.", str(reason))
    return difference_body(found)


def difference_body(found: TableDifference | FilesDifference) -> Markup:
    """A difference that was found, of whichever kind."""
    if isinstance(found, FilesDifference):
        return _files(found)
    if found.is_identical:
        return empty("Both sides show the same.")
    return join([_schema(found.schema), _rows(found)])


def _moved(sides: Sides) -> Markup:
    return tag("p", _side(sides.before), " → ", _side(sides.after), class_="moved")


def _side(transaction: Transaction | None) -> Child:
    if transaction is None:
        return "nothing"
    return tag("span", code_of(transaction.id), f" on {transaction.branch}, by {transaction.actor}")


def schema_lines(changes: SchemaChanges) -> list[tuple[str, str, str]]:
    """Sign, column and what happened to it; pure."""
    lines = [("+", f.path, f"added, {type_text(f.type)}") for f in changes.added]
    lines += [("-", f.path, f"removed, was {type_text(f.type)}") for f in changes.removed]
    lines += [("~", old.path, f"is now called {new.path}") for old, new in changes.renamed]
    lines += [
        ("~", new.path, f"{type_text(old.type)} → {type_text(new.type)}")
        for old, new in changes.retyped
    ]
    lines += [
        ("~", new.path, "is now required" if new.required else "may now be null")
        for _, new in changes.required
    ]
    return lines


def _schema(changes: SchemaChanges) -> Markup | None:
    lines = schema_lines(changes)
    if not lines:
        return None
    rows = [(sign_of(sign), tag("code", column), told) for sign, column, told in lines]
    return card("Schema", table(("", "Column", "Change"), rows, label="Schema changes"))


def sign_of(sign: str) -> Markup:
    tone, word = {"+": ("good", "added"), "-": ("bad", "removed"), "~": ("warn", "changed")}[sign]
    return tag("span", sign, class_=f"sign {tone}", title=word, aria_label=word, role="img")


def counts_line(found: TableDifference | FilesDifference) -> Markup:
    """How much was added, removed and changed, in few words."""
    added, removed, changed = _numbers(found)
    if added is None:
        return badge("rows not compared", "quiet")
    parts = [("+", added, "good"), ("−", removed, "bad"), ("~", changed, "warn")]
    shown = [badge(f"{sign}{number:,}", tone) for sign, number, tone in parts if number]
    return tag("span", shown or badge("same rows", "quiet"), class_="chips")


def _numbers(
    found: TableDifference | FilesDifference,
) -> tuple[int | None, int | None, int | None]:
    if isinstance(found, FilesDifference):
        counts = found.counts
        return tuple(counts[kind] for kind in ChangeKind)  # type: ignore[return-value]
    rows = found.rows
    return (rows.added, rows.removed, rows.changed) if rows else (None, None, None)


def _rows(found: TableDifference) -> Markup:
    rows = found.rows
    before = "?" if found.before_count is None else f"{found.before_count:,}"
    after = "?" if found.after_count is None else f"{found.after_count:,}"
    beside = tag("span", f"{before} → {after} rows  ", counts_line(found), class_="beside")
    if rows is None:
        return card("Rows", empty("Only metadata was compared."), beside=beside)
    key = f"Rows are told apart by {', '.join(found.key)}." if found.key else None
    note = key or "The table has no key, so a changed row is one removed and one added."
    return card(
        "Rows",
        tag("p", note, class_="hint"),
        _sample("+", "Added", rows.added_rows),
        _sample("-", "Removed", rows.removed_rows),
        _changed(rows.changed_rows),
        beside=beside,
    )


def _sample(sign: str, title: str, rows: Sequence[Row]) -> Markup | None:
    if not rows:
        return None
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[sign_of(sign), *(cell(row.get(name)) for name in columns)] for row in rows]
    return join([tag("h3", title), table(["", *columns], lines, label=f"{title} rows")])


def _changed(rows: Sequence[ChangedRow]) -> Markup | None:
    if not rows:
        return None
    keys = list(rows[0].key)
    lines = [
        [sign_of("~"), *(cell(row.key.get(name)) for name in keys), _columns(row)] for row in rows
    ]
    drawn = table(["", *keys, "Changes"], lines, label="Changed rows")
    return join([tag("h3", "Changed"), drawn])


def _columns(row: ChangedRow) -> Markup:
    changes = [
        tag(
            "span",
            tag("b", name),
            " ",
            tag("del", cell(row.before.get(name))),
            " ",
            tag("ins", cell(row.after.get(name))),
            class_="change",
        )
        for name in dict.fromkeys((*row.before, *row.after))
    ]
    return join(changes)


def _files(found: FilesDifference) -> Markup:
    if not any(found.counts.values()):
        return empty("Both sides show the same.")
    signs = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
    lines = [
        (sign_of(signs[kind]), change.path, _sizes(change))
        for kind, changes in found.samples.items()
        for change in changes
    ]
    beside = tag(
        "span",
        f"{found.before_count:,} → {found.after_count:,} files  ",
        counts_line(found),
        class_="beside",
    )
    return card("Files", table(("", "Path", "Size"), lines, label="Files"), beside=beside)


def _sizes(change: Change) -> str:
    sides = [size(entry.size) if entry else None for entry in (change.before, change.after)]
    return " → ".join(side for side in sides if side)
