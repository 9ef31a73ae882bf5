"""Expectations of a schema: what they say is known without looking at a row."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headgate.model.checks import Verdict
from headgate.spark.check_columns import Column, Columns
from headgate.transforms.expected import Expectation, Op

OPS = frozenset({Op.EXISTS, Op.HAS_TYPE, Op.SCHEMA_CONTAINS, Op.SCHEMA_EQUALS, Op.SCHEMA_SUBSET})

# Names that people know a type by, and the one that Spark writes.
_SAME_TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "bool": "boolean",
    "dec": "decimal",
    "numeric": "decimal",
    "str": "string",
    "timestamp_ltz": "timestamp",
}
# A word before a colon is the name of a struct's field.
_TYPE_WORD = re.compile(r"\b[a-z_]+\b(?!:)")


def judge_schema(expectation: Expectation, columns: Columns) -> tuple[Verdict, str]:
    """Whether the schema is as expected, and why."""
    match expectation.op:
        case Op.EXISTS:
            wrong = columns.lacking([_column_of(expectation)])
            return _judged(wrong, f"there is a column {_column_of(expectation)}")
        case Op.HAS_TYPE:
            name = _column_of(expectation)
            if lacking := columns.lacking([name]):
                return Verdict.UNKNOWN, lacking
            wrong = _differences(columns, {name: expectation.operand})
            return _judged(wrong, f"{name} is {expectation.operand}")
    wanted = dict(expectation.operand)
    complaints = []
    if expectation.op is not Op.SCHEMA_SUBSET:
        complaints.append(_differences(columns, wanted))
    else:
        known = {name: wanted[name] for name in wanted if columns.find(name)}
        complaints.append(_differences(columns, known))
    if expectation.op is not Op.SCHEMA_CONTAINS:
        complaints.append(_unexpected(columns, wanted))
    return _judged("; ".join(filter(None, complaints)), f"{len(columns.all)} columns as expected")


def same_type(one: str, other: str) -> bool:
    """Whether two names mean one type."""
    return _canonical(one) == _canonical(other)


def _canonical(type_name: str) -> str:
    text = re.sub(r"\s+", "", type_name.lower())
    text = _TYPE_WORD.sub(lambda word: _SAME_TYPES.get(word[0], word[0]), text)
    # Spark's own meaning of a decimal without digits.
    return re.sub(r"\bdecimal\b(?![(:])", "decimal(10,0)", text)


def _differences(columns: Columns, wanted: Mapping[str, str]) -> str | None:
    complaints = [columns.lacking(wanted)]
    for name, type_name in wanted.items():
        found = columns.find(name)
        if found is not None and not same_type(found.type, type_name):
            complaints.append(f"{found.name} is {found.type}, not {type_name}")
    return "; ".join(filter(None, complaints)) or None


def _unexpected(columns: Columns, wanted: Mapping[str, str]) -> str | None:
    known = {name.casefold() for name in wanted}

    def is_unknown(column: Column) -> bool:
        return column.name.casefold() not in known

    names = [f"{column.name} {column.type}" for column in columns.all if is_unknown(column)]
    return f"not expected: {', '.join(names)}" if names else None


def _judged(wrong: str | None, fine: str) -> tuple[Verdict, str]:
    return (Verdict.UNMET, wrong) if wrong else (Verdict.MET, fine)


def _column_of(expectation: Expectation) -> str:
    subject = expectation.subject
    assert subject is not None and subject.column is not None, "only a column has this expectation"
    return subject.column
