"""The columns of a table that a load creates, inferred from its sources.

Parquet and Arrow have types, and so have the numbers and booleans of JSON. The values of CSV are
text: a column gets the first type of `_TEXT_TYPES` that all of its values have. A number with
leading zeros, such as a postal code, stays text.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid, InvalidSource
from headgate.model.constraints import Constraints
from headgate.model.names import DatasetName
from headgate.rows.cast import CAST_ERRORS, cast_column, is_list
from headgate.rows.schema_file import ColumnSpec, DatasetSpec, UnsuitableKey, with_key
from headgate.rows.sources import Source
from headgate.tables.schemas import UnknownType, parse_type, widest

_WHOLE = r"-?(0|[1-9]\d*)"
_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)"
# Types of text, with the form of their values.
_TEXT_TYPES: Mapping[str, tuple[str, pa.DataType]] = {
    "long": (_WHOLE, pa.int64()),
    "double": (rf"{_WHOLE}(\.\d+)?([eE][+-]?\d+)?", pa.float64()),
    "boolean": ("(?i)(true|false)", pa.bool_()),
    "date": (_DATE, pa.date32()),
    "timestamp": (rf"{_DATE}([T ]{_TIME})?", pa.timestamp("us")),
    "timestamptz": (rf"{_DATE}[T ]{_TIME}{_ZONE}", pa.timestamp("us", tz="UTC")),
}
_PRIMITIVES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_uint64, "decimal(20, 0)"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_null, "string"),
)
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_REALS = ("float", "double")


def infer_table(dataset: DatasetName, sources: Sequence[Source], key: Sequence[str]) -> DatasetSpec:
    """Return the table that holds the rows of all sources; columns of the key are required."""
    found: dict[str, str | None] = {}
    names: dict[str, str] = {}
    for source in sources:
        for column in source.rows.column_names:
            # Columns are the same if they differ in case only, as in a load.
            name = names.setdefault(column.lower(), column)
            kind = _kind_in(source, column)
            held = found.get(name)
            found[name] = kind if held is None else _common(source, name, held, kind)
    if not found:
        raise Invalid(
            f"{dataset} cannot be created: its sources have no column.", dataset=str(dataset)
        )
    missing = [name for name in key if name not in found]
    if missing:
        raise Invalid(
            f"{dataset} cannot be created with the key ({', '.join(key)}): its sources have no "
            f"column {missing[0]!r}, only {', '.join(found)}.",
            dataset=str(dataset),
        )
    columns = tuple(ColumnSpec(name=n, type=kind or "string") for n, kind in found.items())
    try:
        columns = with_key(columns, key)
    except UnsuitableKey as error:
        raise Invalid(f"{dataset} cannot be created: {error}.", dataset=str(dataset)) from error
    return DatasetSpec(name=dataset, columns=columns, constraints=Constraints(key=tuple(key)))


def _kind_in(source: Source, column: str) -> str | None:
    """Return the type of a column in one source; None if it has no values there."""
    values = source.rows.column(column).drop_null()
    if not len(values):
        return None if source.is_text or pa.types.is_null(values.type) else _kind(source, column)
    return _text_kind(values) if source.is_text else _kind(source, column)


def _text_kind(values: pa.ChunkedArray) -> str:
    trimmed = pc.utf8_trim_whitespace(values)
    for kind, (form, arrow) in _TEXT_TYPES.items():
        if not pc.all(pc.match_substring_regex(trimmed, f"^(?:{form})$")).as_py():
            continue
        try:
            cast_column(values, arrow)
        except CAST_ERRORS:
            continue
        return kind
    return "string"


def _kind(source: Source, column: str) -> str:
    kind = source.rows.schema.field(column).type
    try:
        text = _type_of(kind)
        parse_type(text, lambda: 0)
    except UnknownType as error:
        raise InvalidSource(
            file=source.file,
            reason=f"column {column!r} has the Arrow type {kind}, for which no column can be "
            "inferred. Create the table with `headgate schema apply`",
        ) from error
    return text


def _type_of(kind: pa.DataType) -> str:
    """Return the type of a column that holds every value of an Arrow type."""
    for matches, name in _PRIMITIVES:
        if matches(kind):
            return name
    if any(matches(kind) for matches in _TEXT):
        return "string"
    if any(matches(kind) for matches in _BINARY):
        return "binary"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _type_of(kind.value_type)
    if is_list(kind):
        return f"list<{_type_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_of(kind.key_type)}, {_type_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(_field_of, kind))}>"
    raise UnknownType(str(kind))


def _field_of(field: pa.Field) -> str:
    if set(field.name) & set(",:<>()[]") or field.name != field.name.strip():
        raise UnknownType(field.name)
    return f"{field.name}: {_type_of(field.type)}"


def _common(source: Source, column: str, one: str, other: str | None) -> str:
    """Return the type of a column that holds the values of two sources."""
    if other is None or one == other:
        return one
    if (found := widest(one.replace(" ", ""), other.replace(" ", ""))) is not None:
        return found
    if {one, other} <= {"int", "long", *_REALS}:
        return "double"
    if "<" in one or "<" in other:
        raise InvalidSource(
            file=source.file,
            reason=f"column {column!r} is {other} here and {one} in a source before it",
        )
    return "string"
