"""Difference between two table versions: by metadata where possible, then manifests, then rows."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from headgate.errors import Invalid, MissingExtra
from headgate.tables import views
from headgate.tables.inspect import find_row_count, open_scan, read_rows, recorded_row_count
from headgate.tables.metadata import Json, Metadata, Row, current_schema, field_ids, fields_in
from headgate.tables.schemas import widest
from headgate.tables.snapshots import current_snapshot_id, snapshots_since
from headgate.tables.versions import StoredVersion

Version: TypeAlias = StoredVersion | None
# Receives the number of rows, and of the parts on disk that a large comparison needs.
OnLarge: TypeAlias = Callable[[int, int], None]


class Basis(enum.StrEnum):
    """The source of a difference; each costs more than the one before."""

    CONTENT = "content"
    METADATA = "metadata"
    FILES = "files"
    ROWS = "rows"
    # Of a view: its queries, as rows whose key is the dialect.
    QUERIES = "queries"


def _ignore(_rows: int, _parts: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """Extent of a comparison, and access to the files."""

    # AWS_* variables by name, for files in S3.
    options: Mapping[str, str]
    # Columns that identify rows; empty: the table's own identifier columns.
    key: Sequence[str] = ()
    samples: int = 5
    # False: compare the metadata only.
    reads_files: bool = True
    on_large: OnLarge = _ignore


@dataclass(frozen=True, kw_only=True)
class Field:
    """A column, or a field inside one."""

    id: int
    name: str
    # The path of the enclosing field; empty for a column, which may have dots in its name.
    parent: str
    type: Any
    required: bool

    @property
    def kind(self) -> Any:
        """The type of this field without its children, which are fields of their own."""
        return self.type if isinstance(self.type, str) else self.type["type"]

    @property
    def path(self) -> str:
        return f"{self.parent}.{self.name}" if self.parent else self.name


Pair: TypeAlias = tuple[Field, Field]


@dataclass(frozen=True, kw_only=True)
class SchemaChanges:
    """Fields that only one side has, and pairs of the same field that differ."""

    added: tuple[Field, ...] = ()
    removed: tuple[Field, ...] = ()
    renamed: tuple[Pair, ...] = ()
    retyped: tuple[Pair, ...] = ()
    # Made required, or no longer so.
    required: tuple[Pair, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.retyped or self.required)


@dataclass(frozen=True, kw_only=True)
class ChangedRow:
    """Two rows with one key: of each only the columns in which they differ."""

    key: Row
    before: Row
    after: Row


def changed_row(key: Sequence[str], old: Row, new: Row) -> ChangedRow:
    """Return the difference of two rows that have the same columns."""
    names = [name for name in new if old[name] != new[name]]
    return ChangedRow(
        key={name: new[name] for name in key},
        before={name: old[name] for name in names},
        after={name: new[name] for name in names},
    )


@dataclass(kw_only=True)
class RowChanges:
    """The number of rows that differ, and the first few of each kind."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    added_rows: list[Row] = field(default_factory=list)
    removed_rows: list[Row] = field(default_factory=list)
    changed_rows: list[ChangedRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, kw_only=True)
class TableDifference:
    """The changes from one version to the other; None means not known."""

    basis: Basis
    schema: SchemaChanges
    key: tuple[str, ...]
    before_count: int | None
    after_count: int | None
    rows: RowChanges | None

    @property
    def is_identical(self) -> bool:
        return not self.schema and self.rows is not None and not self.rows


def compare_tables(
    before: Version, after: Version, how: DiffOptions, *, same_content: bool = False
) -> TableDifference:
    """Return the difference between two versions; None has neither columns nor rows."""
    old, new = (version.metadata if version else None for version in (before, after))
    pairs = common_columns(old, new) if old is not None and new is not None else []
    key = _choose_key(old, new, pairs, how.key)
    basis: Basis = Basis.CONTENT
    rows: RowChanges | None = RowChanges()
    if not same_content and (old is not None or new is not None):
        basis, rows = Basis.METADATA, _find_appended(before, after, how)
    if rows is None and how.reads_files:
        basis, rows = _compare_files(before, after, pairs, key, how)
    before_count, after_count = _counts(before, after, rows, how)
    return TableDifference(
        basis=basis,
        schema=SchemaChanges() if same_content else schema_changes(old, new),
        key=tuple(pairs[at][1].path for at in key),
        before_count=before_count,
        after_count=after_count,
        rows=rows,
    )


def read_difference(document: Json | None) -> TableDifference | None:
    """Return the difference that another process sent by `asdict`."""
    import pydantic  # noqa: PLC0415  (slow, and for servers only)

    return pydantic.TypeAdapter(TableDifference | None).validate_python(document)


def compare_views(before: Version, after: Version) -> TableDifference:
    """Return the difference between two versions of a view; None has no columns and queries."""
    # Columns are matched by name: each version of a view numbers its own.
    old, new = (
        {**views.as_table(one.metadata), "table-uuid": side} if one else None
        for side, one in (("before", before), ("after", after))
    )
    olds, news = (_queries_of(one.metadata) if one else {} for one in (before, after))
    added, removed = (
        [one[dialect] for dialect in one if dialect not in other]
        for one, other in ((news, olds), (olds, news))
    )
    key = ("dialect",)
    changed = [
        changed_row(key, olds[one], news[one])
        for one in olds
        if news.get(one, olds[one]) != olds[one]
    ]
    return TableDifference(
        basis=Basis.QUERIES,
        schema=schema_changes(old, new),
        key=key,
        before_count=len(olds),
        after_count=len(news),
        rows=RowChanges(
            added=len(added),
            removed=len(removed),
            changed=len(changed),
            added_rows=added,
            removed_rows=removed,
            changed_rows=changed,
        ),
    )


def _queries_of(metadata: Metadata) -> dict[str, Row]:
    found = views.definition(metadata)
    place = [found["default-catalog"], *found["default-namespace"]]
    return {
        dialect: {"dialect": dialect, "query": sql, "defaults": ".".join(filter(None, place))}
        for dialect, sql in found["queries"].items()
    }


def _choose_key(
    old: Metadata | None, new: Metadata | None, pairs: Sequence[Pair], requested: Sequence[str]
) -> list[int]:
    """Return the positions of the key among the common columns; empty for rows without one."""
    names = {pair[0].path: at for at, pair in enumerate(pairs)}
    names |= {pair[1].path: at for at, pair in enumerate(pairs)}
    if requested and pairs:
        unknown = [name for name in requested if name not in names]
        if unknown:
            raise Invalid(
                f"{', '.join(unknown)} cannot be a key: it is not a column that both sides have. "
                f"They have {', '.join(pair[1].path for pair in pairs)}.",
                key=list(requested),
            )
        return [names[name] for name in requested]
    for metadata in (new, old):
        own = identifier_columns(metadata) if metadata is not None else []
        if own and all(name in names for name in own):
            return [names[name] for name in own]
    return []


def _find_appended(before: Version, after: Version, how: DiffOptions) -> RowChanges | None:
    """Return the changes if one version is the other plus appended rows, else None."""
    if after is not None and (snapshots := _appends(before, after)) is not None:
        count, rows = _appended_rows(before, after, snapshots, how)
        return RowChanges(added=count, added_rows=rows) if count is not None else None
    if before is not None and (snapshots := _appends(after, before)) is not None:
        count, rows = _appended_rows(after, before, snapshots, how)
        return RowChanges(removed=count, removed_rows=rows) if count is not None else None
    return None


def _appends(base: Version, new: StoredVersion) -> list[Json] | None:
    """Return the append snapshots between two versions; None if there are other kinds."""
    if base is None:
        return []
    added = snapshots_since(new.metadata, current_snapshot_id(base.metadata))
    if added is None:
        return None
    # A rewrite changes files, not rows.
    changing = [snapshot for snapshot in added if snapshot["summary"]["operation"] != "replace"]
    return changing if all(s["summary"]["operation"] == "append" for s in changing) else None


def _appended_rows(
    base: Version, new: StoredVersion, snapshots: Sequence[Json], how: DiffOptions
) -> tuple[int | None, list[Row]]:
    """Return the number of appended rows, and the first few of them."""
    count = recorded_row_count(new.metadata) if base is None else _total_added(snapshots)
    if not count or not how.reads_files or not how.samples:
        return count, []
    if base is None:
        return count, read_rows(new, limit=how.samples, options=how.options)
    scan = open_scan(new, options=how.options)
    return count, scan.rows(scan.files_added_by(snapshots, how.samples), how.samples)


def _total_added(snapshots: Sequence[Json]) -> int | None:
    total = 0
    for summary in (snapshot["summary"] for snapshot in snapshots):
        # The count may be missing from a snapshot that added no file.
        added = str(summary.get("added-records", "?" if "added-data-files" in summary else "0"))
        if not added.isdigit():
            return None
        total += int(added)
    return total


def _counts(
    before: Version, after: Version, rows: RowChanges | None, how: DiffOptions
) -> tuple[int | None, int | None]:
    """Return the row counts of both sides; the difference gives the second from the first."""
    old = recorded_row_count(before.metadata) if before else 0
    new = recorded_row_count(after.metadata) if after else 0
    if rows is None:
        return old, new
    if old is None and new is None and before is not None and how.reads_files:
        old = find_row_count(before, options=how.options)
    grown = rows.added - rows.removed
    if old is None:
        return (None if new is None else new - grown), new
    return old, (old + grown if new is None else new)


def _compare_files(
    before: Version, after: Version, pairs: Sequence[Pair], key: Sequence[int], how: DiffOptions
) -> tuple[Basis, RowChanges]:
    try:
        from headgate.tables.row_diff import compare_files  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise MissingExtra(feature="comparing rows without Spark", extra="arrow") from error
    was_read, rows = compare_files(
        open_scan(before, options=how.options) if before else None,
        open_scan(after, options=how.options) if after else None,
        pairs=pairs,
        key=key,
        samples=how.samples,
        on_large=how.on_large,
    )
    return (Basis.ROWS if was_read else Basis.FILES), rows


def schema_changes(before: Metadata | None, after: Metadata | None) -> SchemaChanges:
    """Return the changes from one version's schema to the other's; None has no fields."""
    olds, news = _fields(before), _fields(after)
    pairs = _match(before, after)
    paired_old = {old.path for old, _ in pairs}
    paired_new = {new.path for _, new in pairs}
    return SchemaChanges(
        added=_outermost(new for new in news if new.path not in paired_new),
        removed=_outermost(old for old in olds if old.path not in paired_old),
        renamed=tuple(p for p in pairs if p[0].name != p[1].name),
        retyped=tuple(p for p in pairs if p[0].kind != p[1].kind),
        required=tuple(p for p in pairs if p[0].required != p[1].required),
    )


def common_columns(before: Metadata, after: Metadata) -> list[Pair]:
    """Return the columns that both have with comparable types, in the order of the later one."""
    pairs = [p for p in _match(before, after) if not p[0].parent and not p[1].parent]
    return [p for p in pairs if _comparable(p[0].type, p[1].type)]


def identifier_columns(metadata: Metadata) -> list[str]:
    """Return the names of the columns that identify a row, as the table declares them."""
    ids = set((current_schema(metadata) or {}).get("identifier-field-ids") or [])
    return [field.path for field in _fields(metadata) if field.id in ids]


def _match(before: Metadata | None, after: Metadata | None) -> list[Pair]:
    """Pair fields by id where it means the same field on both sides, else by path.

    Two branches that each add a column give it the same id, so an id alone proves nothing.
    """
    if before is None or after is None:
        return []
    shared = _shared_ids(before, after)
    olds = _fields(before)
    by_id = {old.id: old for old in olds if old.id in shared}
    by_path = {old.path: old for old in olds if old.id not in shared}
    pairs = []
    for new in _fields(after):
        old = by_id.get(new.id) if new.id in shared else by_path.get(new.path)
        if old is not None:
            pairs.append((old, new))
    return pairs


def _shared_ids(before: Metadata, after: Metadata) -> set[int]:
    """Return the ids of schemas that both versions list, thus from before they diverged."""
    if before["table-uuid"] != after["table-uuid"]:
        return set()
    known = {_canonical(schema) for schema in before.get("schemas") or []}
    return {
        id
        for schema in after.get("schemas") or []
        if _canonical(schema) in known
        for id in field_ids(schema)
    }


def _canonical(schema: Json) -> bytes:
    return orjson.dumps(schema["fields"], option=orjson.OPT_SORT_KEYS)


def _fields(metadata: Metadata | None) -> list[Field]:
    schema = current_schema(metadata) if metadata is not None else None
    return list(_walk(schema["fields"], "")) if schema is not None else []


def _walk(fields: list[Json], parent: str) -> Iterator[Field]:
    for item in fields:
        found = Field(
            id=item["id"],
            name=item["name"],
            parent=parent,
            type=item["type"],
            required=bool(item.get("required")),
        )
        yield found
        yield from _walk(fields_in(found.type), found.path)


def _outermost(fields: Iterator[Field]) -> tuple[Field, ...]:
    """Leave out fields inside a field that was itself added or removed."""
    found = list(fields)
    paths = {field.path for field in found}
    return tuple(field for field in found if field.parent not in paths)


def _comparable(old: Any, new: Any) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        return widest(old, new) is not None
    return bool(_shape(old) == _shape(new))


def _shape(kind: Any) -> Any:
    """Return a type without the ids and comments in it."""
    if isinstance(kind, str):
        return kind
    return kind["type"], [(f["name"], _shape(f["type"])) for f in fields_in(kind)]
