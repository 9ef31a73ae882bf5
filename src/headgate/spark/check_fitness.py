"""Whether an expectation can be asked of columns of these types."""

from __future__ import annotations

from headgate.spark.check_columns import (
    Column,
    Columns,
    Family,
    unlike,
    unlike_columns,
    unlike_type,
)
from headgate.transforms.expected import (
    ColumnOperand,
    Expectation,
    Op,
    Property,
    Subject,
    operand_value,
)

COMPARISONS = frozenset({Op.GT, Op.GTE, Op.LT, Op.LTE, Op.EQUALS, Op.NOT_EQUALS})
_OF_NUMBERS = {
    Property.SUM,
    Property.STANDARD_DEVIATION_SAMPLE,
    Property.STANDARD_DEVIATION_POPULATION,
}


def names_in(expectation: Expectation) -> list[str]:
    """All columns that an expectation names, each once, first the one that it is about."""
    found: list[str] = []
    if expectation.op in {Op.IS_UNIQUE, Op.PRIMARY_KEY}:
        found += expectation.operand
    elif (subject := expectation.subject) is not None:
        found += [subject.column] if subject.column is not None else []
        found += subject.group_by
        if isinstance(other := operand_value(expectation.operand), ColumnOperand):
            found.append(other.column)
    for part in expectation.parts:
        found += names_in(part)
    return list(dict.fromkeys(found))


def unfit(expectation: Expectation, columns: Columns) -> str | None:
    """Why this cannot be asked of columns of their types, None if it can; all are there."""
    subject = expectation.subject
    if subject is None:
        return None
    if subject.property is not None:
        return _unfit_number(expectation, subject, subject.property, columns)
    assert subject.column is not None, "without a property there is a column"
    return _unfit_column(expectation, columns.load(subject.column), columns)


def _unfit_column(expectation: Expectation, column: Column, columns: Columns) -> str | None:
    value = operand_value(expectation.operand)
    match expectation.op:
        case Op.IS_IN:
            wrong = (unlike(column, operand_value(v)) for v in value if v is not None)
            return next(filter(None, wrong), None)
        case Op.RLIKE if column.family is not Family.TEXT:
            return f"{column.name} is {column.type}, and only text is matched with a pattern"
        case Op.ARRAY_CONTAINS | Op.ARRAY_SIZE if column.element_type is None:
            return f"{column.name} is {column.type}, not an array"
        case Op.ARRAY_CONTAINS:
            wrong_element = unlike_type(column.element_type or "", value)
            return wrong_element and f"{column.name} is {column.type}, {wrong_element}"
    if expectation.op not in COMPARISONS:
        return None
    if isinstance(value, ColumnOperand):
        return unlike_columns(column, columns.load(value.column))
    return unlike(column, value)


def _unfit_number(
    expectation: Expectation, subject: Subject, measured: Property, columns: Columns
) -> str | None:
    if measured in _OF_NUMBERS:
        assert subject.column is not None, "these are measured of a column"
        column = columns.load(subject.column)
        if column.family is not Family.NUMBER:
            return f"{column.name} is {column.type}, and {measured.value} needs numbers"
    number = Column(path=(str(subject),), type="double")
    match expectation.op:
        case Op.NON_NULL | Op.IS_NULL:
            return None
        case Op.IS_IN:
            values = [operand_value(v) for v in expectation.operand if v is not None]
            return next(filter(None, (unlike(number, v) for v in values)), None)
        case op if op in COMPARISONS:
            return unlike(number, operand_value(expectation.operand))
    return f"{subject} is a number, of which {expectation.op.value} cannot be expected"
