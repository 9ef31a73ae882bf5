"""The page of a dataset on a branch, with the tab of its content: rows, schema or files.

The other tabs are in `dataset_parts`. A dataset that is only declared has a page as well.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from headgate.errors import DatasetNotFound, Invalid, Unavailable
from headgate.files.edits import root_of
from headgate.files.tree import Entry
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import DatasetKind, Transaction
from headgate.model.object_store import size_text
from headgate.model.rules import rules_note
from headgate.server.web import dataset_parts, markup
from headgate.server.web.page import Page, Visit
from headgate.store.diff import read_shown
from headgate.store.overview import ShownDataset
from headgate.tables import views
from headgate.tables.inspect import Column, columns_of, partitioning_of, recorded_row_count
from headgate.tables.metadata import Metadata, Row
from headgate.tables.schemas import type_text
from headgate.tables.versions import StoredVersion

_PREVIEW_ROWS = 20
# Entries below a directory that are read at most; the rest is not listed.
_ENTRIES = 5_000


def content(visit: Visit, shown: ShownDataset) -> Markup:
    """Return the content tab: rows and schema of a table, queries of a view, or files."""
    if shown.view is None:
        return _nothing(visit, shown)
    if shown.dataset.kind is DatasetKind.FILES:
        return _files(visit, shown)
    if shown.view.version is None:
        told = f"The {shown.dataset.kind} was dropped on this branch."
        return markup.empty(told, "Its history still has it.")
    version = visit.store.tables.read(shown.view.version.location)
    if shown.dataset.kind is DatasetKind.VIEW:
        return markup.join([*_queries(version.metadata), _schema(views.as_table(version.metadata))])
    return markup.join([_rows(visit, shown.view, version), _schema(version.metadata)])


def _queries(view: Metadata) -> list[Markup]:
    """Return the query of a view in each dialect."""
    definition = views.definition(view)
    place = ".".join(definition["default-namespace"])
    return [
        markup.card(f"Query, {dialect}", markup.command(sql), beside=markup.beside(f"in {place}"))
        for dialect, sql in definition["queries"].items()
    ]


def _nothing(visit: Visit, shown: ShownDataset) -> Markup:
    name, branch = shown.dataset.name, shown.context.partition(">")[0]
    if dataset_parts.load_logic(visit, name, branch):
        example = f"headgate build {name} --upstream -b {branch}"
    elif shown.dataset.kind is DatasetKind.FILES:
        example = f"headgate files put {name} --branch {branch} local.csv data/local.csv"
    elif shown.dataset.kind is DatasetKind.VIEW:
        example = f'headgate sql -b {branch} "create view {name} as select 1 as id"'
    else:
        example = f'headgate sql -b {branch} "create table {name} (id bigint)"'
    return markup.empty("Nothing is committed here yet.", markup.command(example))


def _schema(metadata: Metadata) -> Markup:
    columns = columns_of(metadata)
    rows = [
        (markup.code(c.name), type_text(c.type), "not allowed" if c.required else "allowed")
        for c in columns
    ]
    drawn = markup.table(("Column", "Type", "Null"), rows, label="Columns")
    pairs: list[tuple[str, markup.Child]] = []
    if parts := partitioning_of(metadata):
        pairs.append(("Partitioned by", ", ".join(parts)))
    pairs += sorted((metadata.get("properties") or {}).items())
    return markup.card(
        "Schema",
        drawn,
        markup.facts(pairs) if pairs else None,
        beside=markup.beside(markup.count(len(columns), "column")),
    )


def _rows(visit: Visit, shown: Transaction, version: StoredVersion) -> Markup:
    try:
        found = read_shown(visit.store, shown.branch, version, limit=_PREVIEW_ROWS)
    except (Invalid, Unavailable) as reason:
        told = markup.empty("They cannot be shown here.", visit.explain(reason))
        return markup.card("Rows", told, beside=_number(recorded_row_count(version.metadata)))
    total, rows = found["row_count"], found["rows"]
    beside = _number(total)
    if not rows:
        return markup.card("Rows", markup.empty("The table has no rows."), beside=beside)
    note = f"the first {len(rows)} of " if total is None or total > len(rows) else ""
    drawn = rows_table(columns_of(version.metadata), rows)
    return markup.card("Rows", drawn, beside=_number(total, note))


def _number(total: int | None, note: str = "") -> Markup:
    number = "only Spark can count them" if total is None else markup.count(total, "row")
    return markup.beside(f"{note}{number}")


def rows_table(columns: Iterable[Column], rows: Iterable[Row]) -> Markup:
    """Return a table of rows; columns of numbers are aligned right."""
    known = list(columns)
    numeric = ("int", "long", "float", "double", "decimal")
    at = [i for i, c in enumerate(known) if type_text(c.type).startswith(numeric)]
    drawn = ([markup.cell(row.get(column.name)) for column in known] for row in rows)
    return markup.table([column.name for column in known], drawn, label="Rows", numbers=at)


@dataclass(kw_only=True)
class Directory:
    """One level of a tree: its files, and by directory the number and size of the files below."""

    files: list[Entry] = field(default_factory=list)
    below: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Whether entries beyond the limit were left out.
    cut: bool = False


def list_directory(entries: Iterable[Entry], prefix: str, limit: int) -> Directory:
    """Return the direct children of a directory, computed from the entries below it; pure."""
    found = Directory()
    for seen, entry in enumerate(entries):
        if seen >= limit:
            found.cut = True
            break
        name, slash, _ = entry.path.removeprefix(prefix).partition("/")
        if slash or entry.is_directory:
            files, total = found.below.get(name, (0, 0))
            found.below[name] = (files + (not entry.is_directory), total + entry.size)
        else:
            found.files.append(entry)
    return found


def _files(visit: Visit, shown: ShownDataset) -> Markup:
    path = visit.param("path").strip("/")
    prefix = f"{path}/" if path else ""
    root = root_of(shown.view.version if shown.view else None)
    whole = visit.store.trees.measure(root)
    walked = visit.store.trees.walk(root, path)
    here = list_directory(itertools.islice(walked, _ENTRIES + 1), prefix, _ENTRIES)
    rows = [*_directories(shown, prefix, here.below), *_entries(here.files, prefix)]
    beside = markup.beside(f"{markup.count(whole.entries, 'file')}, {size_text(whole.bytes)}")
    drawn = markup.empty("Nothing is here.")
    if rows:
        drawn = markup.table(("Name", "Size", "Digest"), rows, label="Files", numbers=(1,))
    note = f"Only the first {_ENTRIES:,} entries are shown."
    cut = markup.tag("p", note) if here.cut else None
    return markup.card("Files", _crumbs(shown, path), drawn, cut, beside=beside)


def _directories(
    shown: ShownDataset, prefix: str, below: Mapping[str, tuple[int, int]]
) -> list[tuple[markup.Child, ...]]:
    return [
        (
            markup.link(f"{name}/", dataset_parts.address_of(shown, path=f"{prefix}{name}")),
            size_text(total),
            markup.count(files, "file"),
        )
        for name, (files, total) in sorted(below.items())
    ]


def _entries(files: Iterable[Entry], prefix: str) -> list[tuple[markup.Child, ...]]:
    return [
        (entry.path.removeprefix(prefix), size_text(entry.size), markup.code(entry.digest[:12]))
        for entry in files
    ]


def _crumbs(shown: ShownDataset, path: str) -> Markup:
    steps = [markup.link(str(shown.dataset.name.name), dataset_parts.address_of(shown))]
    parts = [part for part in path.split("/") if part]
    for at, part in enumerate(parts, start=1):
        steps += [
            markup.tag("span", "/"),
            markup.link(part, dataset_parts.address_of(shown, path="/".join(parts[:at]))),
        ]
    return markup.tag("nav", steps, class_="crumbs", aria_label="Directory")


def find_declared_page(visit: Visit, name: DatasetName) -> Page | None:
    """Return the logic and the build command of a dataset; None if no transform produces it."""
    branch = visit.param("branch", visit.primary).partition(">")[0]
    found = [spec for spec in dataset_parts.load_logic(visit, name, branch) if not spec.removed]
    if not found:
        return None
    hint = markup.join(
        ["A build makes it:", markup.command(f"headgate build {name} --upstream -b {branch}")]
    )
    return Page(
        title=str(name),
        place=markup.DATASETS,
        sections={
            "head": markup.heading(str(name), markup.badge("not built yet", "warn")),
            "build": markup.empty("Nothing was ever published here.", hint),
            "logic": markup.join([dataset_parts.logic_card(visit, spec) for spec in found]),
        },
    )


_TABS: dict[str, tuple[str, Callable[[Visit, ShownDataset], Markup]]] = {
    "content": ("Content", content),
    "history": ("History", dataset_parts.history),
    "checks": ("Checks", dataset_parts.checks),
    "compare": ("Compare", dataset_parts.comparison),
    "logic": ("Logic", dataset_parts.logic),
}


def dataset_page(visit: Visit) -> Page:
    """Return the page of a dataset with one of its tabs."""
    try:
        shown = visit.store.overview.dataset(visit.subject, visit.param("branch"))
    except DatasetNotFound:
        declared = find_declared_page(visit, parse_dataset_name(visit.subject))
        if declared is None:
            raise
        return declared
    tab = visit.param("tab", "content")
    title, draw = _TABS.get(tab, _TABS["content"])
    places = [
        (text, dataset_parts.address_of(shown, tab=key), text == title)
        for key, (text, _) in _TABS.items()
    ]
    return Page(
        title=str(shown.dataset.name),
        place=markup.DATASETS,
        sections={
            "head": _head(visit, shown, tab),
            "tabs": markup.tabs("Sides of this dataset", places),
            title: draw(visit, shown),
        },
    )


def _head(visit: Visit, shown: ShownDataset, tab: str) -> Markup:
    dataset = shown.dataset
    title: markup.Child = [markup.mark(blue=shown.blue, primary=visit.primary), str(dataset.name)]
    return markup.join(
        [
            markup.heading(
                title,
                markup.badge(dataset.kind.value, "kind"),
                _chooser(shown, tab),
                _lineage_link(shown),
            ),
            markup.facts(_facts(visit, shown)),
        ]
    )


def _lineage_link(shown: ShownDataset) -> Markup | None:
    if shown.branch is None:
        return None
    at = markup.with_query(
        markup.LINEAGE, branch=shown.branch.name, dataset=str(shown.dataset.name)
    )
    return markup.link("Lineage", at, class_="button")


def _chooser(shown: ShownDataset, tab: str) -> Markup:
    names = [branch.name for branch in shown.branches]
    options = [(name, name) for name in names]
    if shown.context not in names:
        options.insert(0, (shown.context, shown.context))
    return markup.form(
        markup.dataset_at(shown.dataset.name),
        markup.choice("branch", "Branch", options, shown.context),
        markup.hidden("tab", tab),
        label="Choose a branch",
        class_="filters sends",
    )


def _facts(visit: Visit, shown: ShownDataset) -> list[tuple[str, markup.Child]]:
    pairs: list[tuple[str, markup.Child]] = []
    branch, view = shown.branch, shown.view
    if branch is not None:
        above = markup.dataset_at(shown.dataset.name, branch=branch.parent)
        pairs.append(
            ("Parent", markup.link(branch.parent, above) if branch.parent else "none (root branch)")
        )
    if view is None:
        pairs.append(("View", "nothing is committed here yet"))
        return pairs
    pairs += [
        ("View", [markup.code(view.id), " ", markup.badge(view.type.value, "kind")]),
        ("Written", [markup.moment(view.closed_at, visit.now), f" by {view.actor}"]),
    ]
    if shown.last is not None:
        published = [markup.moment(shown.last.at, visit.now), f" by {shown.last.actor}"]
        pairs.append(("Published", published))
    if shown.opened is not None:
        pairs.append(("Open now", _open(visit, shown.opened)))
    if "build" in view.provenance:
        id = str(view.provenance["build"])
        pairs.append(("Build", markup.link(id, markup.build_at(id))))
    if note := rules_note(view.provenance):
        pairs.append(("Rules", markup.badge(note, "warn")))
    return pairs


def _open(visit: Visit, opened: Transaction) -> Markup:
    since = markup.moment(opened.opened_at, visit.now)
    what = [markup.code(opened.id), " ", markup.badge("OPEN")]
    return markup.tag("span", what, f" by {opened.actor}, since ", since)
