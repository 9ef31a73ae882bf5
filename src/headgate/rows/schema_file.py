"""Schema files: TOML that declares tables, their columns and their constraints."""

from __future__ import annotations

import datetime
import decimal
import difflib
import re
import tomllib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headgate.errors import HeadgateError, InvalidSchemaFile
from headgate.model.constraints import Cardinality, Constraints, Enforce, OnDelete, Reference
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.tables.schemas import KEY_TYPES, UnknownType, parse_type

KeyPath = tuple[str, ...]

_DATASET_KEYS = {
    *("columns", "key", "unique", "references", "cardinality", "renamed_from", "buckets"),
    "enforce",
}
_COLUMN_KEYS = {"type", "required", "default", "enum", "renamed_from", "doc"}


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    name: str
    # As written: field ids are assigned when it is applied to a table.
    type: str
    required: bool = False
    renamed_from: str | None = None
    doc: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    name: DatasetName
    columns: tuple[ColumnSpec, ...]
    constraints: Constraints
    renamed_from: DatasetName | None = None
    buckets: int | None = None
    # None: the default, or what the table property says.
    enforce: Enforce | None = None


@dataclass(frozen=True, kw_only=True)
class SchemaFile:
    file: str
    datasets: tuple[DatasetSpec, ...]
    lines: Lines = field(compare=False)

    def error(self, dataset: DatasetName, *path: str, reason: str) -> InvalidSchemaFile:
        """Return an error at the line of a dataset, or of a key in it."""
        line = self.lines.of("dataset", str(dataset), *path)
        return InvalidSchemaFile(file=self.file, line=line, reason=reason)


class UnsuitableKey(ValueError):
    """A column has a type whose values do not identify rows."""


def with_key(columns: tuple[ColumnSpec, ...], key: Sequence[str]) -> tuple[ColumnSpec, ...]:
    """Return the columns with those of the key required."""
    for column in columns:
        kind = column.type.split("(")[0].split("[")[0].strip()
        if column.name in key and kind not in KEY_TYPES | {"decimal", "fixed"}:
            raise UnsuitableKey(
                f"column {column.name!r} of type {column.type} cannot be in a key: NaN and nested "
                "values do not identify rows"
            )
    return tuple(
        replace(column, required=True) if column.name in key else column for column in columns
    )


# Of a key with more parts than any schema file needs: the parser's time grows with their square.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){20}""")


def parse_schema(text: str, file: str) -> SchemaFile:
    """Parse a schema file; errors name the file and the line."""
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InvalidSchemaFile(file=file, line=line, reason="a name has over 20 parts")
    try:
        document = _plain(tomllib.loads(text))
    except RecursionError as error:
        raise InvalidSchemaFile(file=file, line=1, reason="it is nested too deeply") from error
    # Also a number of more digits than Python reads.
    except ValueError as error:
        line = getattr(error, "lineno", None) or _line_in(str(error))
        raise InvalidSchemaFile(file=file, line=line, reason=str(error)) from error
    return _Reader(file, Lines(text)).read(document)


def _line_in(message: str) -> int:
    _, _, rest = message.partition("line ")
    digits = rest.split(",")[0].split(")")[0].strip()
    return int(digits) if digits.isdigit() else 1


class _Reader:
    def __init__(self, file: str, lines: Lines) -> None:
        self.file = file
        self.lines = lines

    def read(self, document: Mapping[str, Any]) -> SchemaFile:
        for name in document:
            if name != "dataset":
                raise self.error((name,), f'unknown table [{name}]; tables are [dataset."ns.name"]')
        datasets = document.get("dataset")
        if not isinstance(datasets, dict) or not datasets:
            raise self.error((), 'the file has no dataset; add [dataset."ns.name"]')
        return SchemaFile(
            file=self.file,
            datasets=tuple(self.dataset(name, body) for name, body in datasets.items()),
            lines=self.lines,
        )

    def dataset(self, text: str, body: Any) -> DatasetSpec:
        at = ("dataset", text)
        if isinstance(body, dict) and "." in text:
            self.check_keys(body, _DATASET_KEYS, at)
        if not isinstance(body, dict) or "columns" not in body:
            hint = "" if "." in text else '; a name with dots is quoted: [dataset."ns.name"]'
            raise self.error(at, f"dataset {text!r} has no columns{hint}")
        name = self.dataset_name(text, at)
        columns = body["columns"]
        if not isinstance(columns, dict) or not columns:
            raise self.error((*at, "columns"), "columns must be a table of names and types")
        specs = tuple(self.column(c, body, at) for c, body in columns.items())
        renamed = body.get("renamed_from")
        buckets = body.get("buckets")
        if buckets is not None and not (_is_int(buckets) and 1 <= buckets <= 4096):
            raise self.error((*at, "buckets"), "buckets must be an integer from 1 to 4096")
        enforce = body.get("enforce")
        if enforce is not None and enforce not in set(Enforce):
            raise self.error((*at, "enforce"), f"enforce must be one of {', '.join(Enforce)}")
        try:
            specs = with_key(specs, self.names(body, "key", at))
        except UnsuitableKey as error:
            raise self.error((*at, "key"), str(error)) from error
        return DatasetSpec(
            name=name,
            columns=specs,
            constraints=self.constraints(columns, body, at),
            renamed_from=self.dataset_name(renamed, (*at, "renamed_from")) if renamed else None,
            buckets=buckets,
            enforce=Enforce(enforce) if enforce is not None else None,
        )

    def column(self, name: str, body: Any, at: KeyPath) -> ColumnSpec:
        here = (*at, "columns", name)
        long = {"type": body} if isinstance(body, str) else body
        if not isinstance(long, dict) or not isinstance(long.get("type"), str):
            raise self.error(here, f'column {name!r} has no type; write {name} = "string"')
        self.check_keys(long, _COLUMN_KEYS, here)
        try:
            parse_type(long["type"], lambda: 0)
        except UnknownType as error:
            raise self.error(here, f"column {name!r}: {error}") from error
        required = long.get("required", False)
        if not isinstance(required, bool):
            raise self.error(here, f"column {name!r}: required must be true or false")
        for value in [*long.get("enum", []), long.get("default")]:
            if value is not None and not _is_value_of(long["type"], value):
                reason = f"column {name!r}: {value!r} is not a value of type {long['type']}"
                raise self.error(here, reason)
        if long.get("enum") and long.get("default", long["enum"][0]) not in long["enum"]:
            raise self.error(here, f"column {name!r}: the default is not in the enum")
        return ColumnSpec(
            name=name,
            type=long["type"],
            required=required,
            renamed_from=long.get("renamed_from"),
            doc=long.get("doc"),
        )

    def constraints(
        self, columns: Mapping[str, Any], body: Mapping[str, Any], at: KeyPath
    ) -> Constraints:
        key = self.names(body, "key", at)
        unique = body.get("unique", [])
        if not isinstance(unique, list) or any(not isinstance(item, list) for item in unique):
            raise self.error((*at, "unique"), 'unique must be a list of lists: [["a", "b"]]')
        found = Constraints(
            key=key,
            unique=tuple(self.names({"unique": item}, "unique", at) for item in unique),
            references=tuple(
                self.reference(item, at) for item in self.items(body, "references", at)
            ),
            cardinality=tuple(self.limit(item, at) for item in self.items(body, "cardinality", at)),
            enums={c: tuple(b["enum"]) for c, b in columns.items() if _has(b, "enum")},
            defaults={c: b["default"] for c, b in columns.items() if _has(b, "default")},
        )
        self.check_columns("key", found.key, columns, at)
        for names in found.unique:
            self.check_columns("unique", names, columns, at)
        self.check_columns("references", [r.column for r in found.references], columns, at)
        self.check_columns("cardinality", [c.per for c in found.cardinality], columns, at)
        return found

    def items(self, body: Mapping[str, Any], key: str, at: KeyPath) -> list[Any]:
        found = body.get(key, [])
        if not isinstance(found, list):
            raise self.error((*at, key), f"{key} must be a list")
        return found

    def reference(self, item: Any, at: KeyPath) -> Reference:
        here = (*at, "references")
        if not isinstance(item, dict) or not {"column", "dataset"} <= set(item):
            raise self.error(here, 'a reference must be {column = "src", dataset = "graph.person"}')
        self.check_keys(item, {"column", "dataset", "on_delete"}, here)
        if not isinstance(item["column"], str):
            raise self.error(here, f"column must be the name of one, not {item['column']!r}")
        word = item.get("on_delete", OnDelete.RESTRICT)
        if not isinstance(word, str) or word not in set(OnDelete):
            raise self.error(here, f"on_delete must be restrict or cascade, not {word!r}")
        name = self.dataset_name(item["dataset"], here)
        return Reference(column=item["column"], dataset=str(name), on_delete=OnDelete(word))

    def limit(self, item: Any, at: KeyPath) -> Cardinality:
        here = (*at, "cardinality")
        if not isinstance(item, dict) or set(item) != {"per", "max"}:
            raise self.error(here, 'a cardinality must be {per = "src", max = 5}')
        if not _is_int(item["max"]) or item["max"] < 1:
            raise self.error(here, f"max must be an integer of at least 1, not {item['max']!r}")
        if not isinstance(item["per"], str):
            raise self.error(here, f"per must be the name of a column, not {item['per']!r}")
        return Cardinality(per=item["per"], max=item["max"])

    def names(self, body: Mapping[str, Any], key: str, at: KeyPath) -> tuple[str, ...]:
        found = body.get(key, [])
        if not isinstance(found, list) or any(not isinstance(name, str) for name in found):
            raise self.error((*at, key), f'{key} must be a list of columns, such as ["id"]')
        if len(set(found)) != len(found):
            raise self.error((*at, key), f"{key} names a column twice")
        return tuple(found)

    def check_columns(
        self, what: str, names: Iterable[str], columns: Mapping[str, Any], at: KeyPath
    ) -> None:
        for name in names:
            if name not in columns:
                raise self.error(
                    (*at, what), f"{what}: there is no column {name!r}{_suggestion(name, columns)}"
                )

    def check_keys(self, body: Mapping[str, Any], words: set[str], at: KeyPath) -> None:
        for word in body:
            if word not in words:
                raise self.error((*at, word), f"unknown key {word!r}{_suggestion(word, words)}")

    def dataset_name(self, text: Any, at: KeyPath) -> DatasetName:
        try:
            return parse_dataset_name(str(text))
        except HeadgateError as error:
            raise self.error(at, error.message) from error

    def error(self, at: KeyPath, reason: str) -> InvalidSchemaFile:
        return InvalidSchemaFile(file=self.file, line=self.lines.of(*at), reason=reason)


def _suggestion(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _has(body: Any, word: str) -> bool:
    return isinstance(body, dict) and body.get(word) is not None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Values: defaults and members of enums.

_WHOLE = frozenset({"int", "long"})
_REAL = frozenset({"float", "double"})


def _finite(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


# Parsers of values that are written as text.
_PARSERS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "date": datetime.date.fromisoformat,
        "time": datetime.time.fromisoformat,
        "timestamp": datetime.datetime.fromisoformat,
        "timestamptz": datetime.datetime.fromisoformat,
        "uuid": uuid.UUID,
        "decimal": _finite,
    }
)


def _plain(value: Any) -> Any:
    """Return a TOML value with dates and times as text, as in JSON and SQL."""
    match value:
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
    return value


def _is_value_of(kind: str, value: Any) -> bool:
    """Return whether a column of this type can hold the value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    family = kind.split("(")[0].strip()
    if kind in _WHOLE:
        return is_number and isinstance(value, int)
    if kind in _REAL:
        return is_number
    if kind == "boolean":
        return isinstance(value, bool)
    if not isinstance(value, str):
        return family == "decimal" and is_number
    try:
        _PARSERS.get(family, str)(value)
    except (ValueError, decimal.InvalidOperation):
        return False
    return True


_WORD = r"(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)"
_KEY = re.compile(rf"\s*({_WORD}(?:\s*\.\s*{_WORD})*)\s*=")


class Lines:
    """The line of each table and key of a document, by path; `tomllib` reports none."""

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        header: KeyPath = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith("["):
                header = _path(line.split("#", 1)[0]) or header
                self._lines.setdefault(header, number)
            elif found := _KEY.match(line):
                self._lines.setdefault((*header, *(_path(f"{found[1]} = 0") or ())), number)

    def of(self, *path: str) -> int:
        """Return the line of the key, or of the nearest table that holds it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1


def _path(line: str) -> KeyPath | None:
    try:
        at: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    found: list[str] = []
    while isinstance(at, dict | list) and at:
        if isinstance(at, list):
            at = at[0]
            continue
        [name] = at
        found.append(name)
        at = at[name]
    return tuple(found)
