"""What a dataset holds: a table's columns and first rows, or a directory of its files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.errors import MissingExtra, NeedsSpark
from headgate.files.entries import Entry
from headgate.files.writing import root_of
from headgate.model.nouns import DatasetKind
from headgate.server.web.logic import load_logic
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    card,
    cell,
    code,
    command,
    count,
    empty,
    facts,
    link,
    size,
    table,
)
from headgate.server.web.showing import Shown
from headgate.server.web.visiting import Visit
from headgate.tables.reading import (
    Column,
    columns_of,
    find_row_count,
    partitioning_of,
    read_rows,
    type_text,
)
from headgate.tables.rows import Row
from headgate.tables.versions import StoredVersion

_PREVIEW_ROWS = 20
# Of a directory with more below it only the beginning is listed.
_ENTRIES = 5_000


def content(visit: Visit, shown: Shown) -> Markup:
    """The side of a dataset that holds data."""
    if shown.view is None:
        return _nothing(visit, shown)
    if shown.dataset.kind is DatasetKind.FILES:
        return _files(visit, shown)
    if shown.view.version is None:
        return empty("The table was dropped on this branch.", "Its history still has it.")
    version = visit.store.tables.read(shown.view.version.location)
    return join([_rows(visit, version), _schema(version)])


def _nothing(visit: Visit, shown: Shown) -> Markup:
    name, branch = shown.dataset.name, shown.context.partition(">")[0]
    if load_logic(visit, name, branch):
        example = f"headgate build {name} --upstream -b {branch}"
    elif shown.dataset.kind is DatasetKind.FILES:
        example = f"headgate files put {name} --branch {branch} local.csv data/local.csv"
    else:
        example = f'headgate sql -b {branch} "create table {name} (id bigint)"'
    return empty("Nothing is committed here yet.", command(example))


def _schema(version: StoredVersion) -> Markup:
    columns = columns_of(version.metadata)
    rows = [
        (code(c.name), type_text(c.type), badge("required", "quiet") if c.required else "")
        for c in columns
    ]
    drawn = table(("Column", "Type", ""), rows, label="Columns")
    pairs: list[tuple[str, Child]] = []
    if parts := partitioning_of(version.metadata):
        pairs.append(("Partitioned by", ", ".join(parts)))
    pairs += sorted((version.metadata.get("properties") or {}).items())
    return card(
        "Schema",
        drawn,
        facts(pairs) if pairs else None,
        beside=tag("span", count(len(columns), "column"), class_="beside"),
    )


def _rows(visit: Visit, version: StoredVersion) -> Markup:
    options = visit.store.settings.environ
    total = find_row_count(version, options=options)
    told = "only Spark can count them" if total is None else count(total, "row")
    beside = tag("span", told, class_="beside")
    try:
        rows = read_rows(version, limit=_PREVIEW_ROWS, options=options)
    except (MissingExtra, NeedsSpark) as reason:
        return card("Rows", empty("They cannot be shown here.", str(reason)), beside=beside)
    if not rows:
        return card("Rows", empty("The table has no rows."), beside=beside)
    note = f"the first {len(rows)} of " if total is None or total > len(rows) else ""
    beside = tag("span", f"{note}{told}", class_="beside")
    return card("Rows", rows_table(columns_of(version.metadata), rows), beside=beside)


def rows_table(columns: Iterable[Column], rows: Iterable[Row]) -> Markup:
    """Rows under the names of their columns; numbers to the right."""
    known = list(columns)
    numeric = {"int", "long", "float", "double"}
    at = [i for i, c in enumerate(known) if c.type in numeric or str(c.type).startswith("decimal")]
    drawn = ([cell(row.get(column.name)) for column in known] for row in rows)
    return table([column.name for column in known], drawn, label="Rows", numbers=at)


@dataclass(kw_only=True)
class Directory:
    """One level of a tree: files here, and directories with how much is below them."""

    files: list[Entry] = field(default_factory=list)
    below: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Whether there was more than was looked at.
    cut: bool = False


def list_directory(entries: Iterable[Entry], prefix: str, limit: int) -> Directory:
    """What is directly in a directory, from the entries below it; pure."""
    found = Directory()
    for seen, entry in enumerate(entries):
        if seen >= limit:
            found.cut = True
            break
        rest = entry.path.removeprefix(prefix)
        name, slash, _ = rest.partition("/")
        if slash or entry.is_directory:
            files, total = found.below.get(name, (0, 0))
            found.below[name] = (files + (not entry.is_directory), total + entry.size)
        else:
            found.files.append(entry)
    return found


def _files(visit: Visit, shown: Shown) -> Markup:
    path = visit.asked("path").strip("/")
    prefix = f"{path}/" if path else ""
    root = root_of(shown.view.version if shown.view else None)
    whole = visit.store.trees.measure(root)
    walked = visit.store.trees.walk(root, path)
    here = list_directory(itertools.islice(walked, _ENTRIES + 1), prefix, _ENTRIES)
    rows = [*_directories(shown, prefix, here.below), *_entries(here.files, prefix)]
    beside = tag("span", f"{count(whole.entries, 'file')}, {size(whole.bytes)}", class_="beside")
    if not rows:
        return card("Files", _crumbs(shown, path), empty("Nothing is here."), beside=beside)
    note = f"Only the first {_ENTRIES:,} entries are shown." if here.cut else None
    drawn = table(("Name", "Size", "Digest"), rows, label="Files", numbers=(1,))
    return card(
        "Files",
        _crumbs(shown, path),
        drawn,
        tag("p", note) if note else None,
        beside=beside,
    )


def _directories(
    shown: Shown, prefix: str, below: Mapping[str, tuple[int, int]]
) -> list[tuple[Child, ...]]:
    return [
        (
            link(f"{name}/", shown.at(path=f"{prefix}{name}")),
            size(total),
            count(files, "file"),
        )
        for name, (files, total) in sorted(below.items())
    ]


def _entries(files: Iterable[Entry], prefix: str) -> list[tuple[Child, ...]]:
    return [
        (entry.path.removeprefix(prefix), size(entry.size), code(entry.digest[:12]))
        for entry in files
    ]


def _crumbs(shown: Shown, path: str) -> Markup:
    steps = [link(str(shown.dataset.name.name), shown.at())]
    parts = [part for part in path.split("/") if part]
    for at, part in enumerate(parts, start=1):
        steps += [tag("span", "/"), link(part, shown.at(path="/".join(parts[:at])))]
    return tag("nav", steps, class_="crumbs", aria_label="Directory")
