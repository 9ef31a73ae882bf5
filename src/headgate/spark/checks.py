"""Evaluates checks on a DataFrame, in as few passes over its rows as there can be.

One aggregation finds every number about rows, columns and properties; one more is made for each
grouping that a check names; what is said of the schema costs none. Only where something failed,
one last job looks at values. How nulls count is said in `headgate.transforms.expectations`.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions

from headgate.errors import ChecksFailed
from headgate.model.checks import CheckResult, CheckStage, stopping
from headgate.model.jobspecs import CheckSpec, Declaration, InputSpec, OutputSpec
from headgate.spark.check_columns import Column, Columns, Family, as_moment, names_in
from headgate.spark.check_plan import (
    EachGroup,
    EachRow,
    Figure,
    Measure,
    Unique,
    Unmeasured,
    judge,
    measures_of,
    passes,
    plan,
)
from headgate.spark.job_io import table_identifier
from headgate.spark.job_protocol import Source, Target
from headgate.transforms import Input, Output, Transform
from headgate.transforms.discovery import describe
from headgate.transforms.expectation_tree import (
    ColumnOperand,
    Expectation,
    NowOperand,
    Op,
    Property,
    Subject,
    expectation_from_json,
    operand_value,
)
from headgate.transforms.where import Place

# Measures and conditions as Spark's own expressions: nothing is computed here.

_LONG_LIMIT = 2**63
# How many rows a group has, under a name that no measure gets.
ROWS_OF_GROUP = "rows"

_COMPARE: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.GT: lambda one, other: one > other,
    Op.GTE: lambda one, other: one >= other,
    Op.LT: lambda one, other: one < other,
    Op.LTE: lambda one, other: one <= other,
    Op.EQUALS: lambda one, other: one == other,
    Op.NOT_EQUALS: lambda one, other: one != other,
}

# What an expectation looks at, as an expression and with its type.
Look = Callable[[Subject], tuple[Any, Column]]


class RowExpressions:
    """Expressions over the rows of a dataset."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def column(self, name: str) -> Any:
        """The column, or the struct's field, whatever characters its name has."""
        path = self._columns.load(name).path
        return functions.col(".".join(f"`{part.replace('`', '``')}`" for part in path))

    def condition(self, expectation: Expectation) -> Any:
        """True, false, or null where a null says nothing."""
        return condition(expectation, self._look, self.column)

    def aggregate(self, measure: Measure) -> Any:
        """The measure of all rows."""
        match measure.figure:
            case Figure.ROWS:
                return functions.count(functions.lit(1))
            case Figure.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
            case Property():
                return self.property(measure.figure, measure.columns)
        raise AssertionError(f"{measure.figure} is not measured of all rows")

    def property(self, measured: Property, names: Sequence[str]) -> Any:
        """A property of a column, of all rows or within a group."""
        columns = [self.column(name) for name in names]
        match measured:
            case Property.COUNT:
                return functions.count(functions.lit(1))
            case Property.NULL_COUNT:
                return functions.count_if(columns[0].isNull())
            case Property.NULL_PERCENTAGE:
                return functions.avg(columns[0].isNull().cast("int"))
            case Property.DISTINCT_COUNT:
                return functions.count_distinct(columns[0])
            case Property.APPROX_DISTINCT_COUNT if len(columns) > 1:
                return functions.approx_count_distinct(functions.struct(*columns))
            case Property.APPROX_DISTINCT_COUNT:
                return functions.approx_count_distinct(columns[0])
            case Property.SUM:
                return functions.sum(columns[0])
            case Property.STANDARD_DEVIATION_SAMPLE:
                return functions.stddev_samp(columns[0])
        return functions.stddev_pop(columns[0])

    def _look(self, subject: Subject) -> tuple[Any, Column]:
        assert subject.column is not None
        return self.column(subject.column), self._columns.load(subject.column)


class GroupExpressions:
    """Expressions over groups of rows, each with the properties that conditions ask for."""

    def __init__(
        self, rows: RowExpressions, by: Sequence[str], conditions: Iterable[Expectation]
    ) -> None:
        self._rows = rows
        self.keys = {f"key{number}": name for number, name in enumerate(by)}
        subjects = dict.fromkeys(s for condition in conditions for s in subjects_in(condition))
        self.properties = {f"property{number}": s for number, s in enumerate(subjects)}

    def frame(self, frame: Any) -> Any:
        """One row for each group: its keys, its number of rows, its properties."""
        keys = [self._rows.column(name).alias(key) for key, name in self.keys.items()]
        properties = [
            self._rows.property(s.property, [s.column] if s.column else []).alias(name)
            for name, s in self.properties.items()
            if s.property is not None
        ]
        rows = functions.count(functions.lit(1)).alias(ROWS_OF_GROUP)
        return frame.groupBy(*keys).agg(rows, *properties)

    def condition(self, expectation: Expectation) -> Any:
        return condition(expectation, self._look, functions.col)

    def repeated(self) -> Any:
        return functions.col(ROWS_OF_GROUP) > 1

    def null_key(self) -> Any:
        return reduce(lambda one, other: one | other, (functions.isnull(k) for k in self.keys))

    def aggregate(self, measure: Measure) -> Any:
        """The measure of all groups."""
        rows = functions.col(ROWS_OF_GROUP)
        match measure.figure:
            case Figure.ROWS:
                return functions.coalesce(functions.sum(rows), functions.lit(0))
            case Figure.GROUPS:
                return functions.count(functions.lit(1))
            case Figure.REPEATED:
                return functions.count_if(self.repeated())
            case Figure.NULL_KEYS:
                null_rows = functions.sum(functions.when(self.null_key(), rows))
                return functions.coalesce(null_rows, functions.lit(0))
            case Figure.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
        raise AssertionError(f"{measure.figure} is not measured of groups")

    def _look(self, subject: Subject) -> tuple[Any, Column]:
        name = next(name for name, known in self.properties.items() if known == subject)
        # Every property is a number; which kind does not matter to what it is compared with.
        return functions.col(name), Column(path=(name,), type="double")


def condition(expectation: Expectation, look: Look, column: Callable[[str], Any]) -> Any:
    """An expectation of rows or groups; nulls follow SQL's three values, `is_in` has two."""
    match expectation.op:
        case Op.ALL:
            parts = (condition(part, look, column) for part in expectation.parts)
            return reduce(lambda one, other: one & other, parts)
        case Op.ANY:
            parts = (condition(part, look, column) for part in expectation.parts)
            return reduce(lambda one, other: one | other, parts)
        case Op.NEGATE:
            return ~condition(expectation.parts[0], look, column)
    assert expectation.subject is not None
    subject, known = look(expectation.subject)
    operand = operand_value(expectation.operand)
    match expectation.op:
        case Op.NON_NULL:
            return subject.isNotNull()
        case Op.IS_NULL:
            return subject.isNull()
        case Op.IS_IN:
            return _is_in(subject, known, [operand_value(value) for value in operand])
        case Op.RLIKE:
            return subject.rlike(operand)
        case Op.ARRAY_CONTAINS:
            element = Column(path=known.path, type=known.element_type or "")
            return functions.array_contains(subject, _literal(operand, element))
        case Op.ARRAY_SIZE:
            least, most = operand
            size = functions.array_size(subject)
            return size >= least if most is None else size.between(least, most)
    other = (
        column(operand.column) if isinstance(operand, ColumnOperand) else _literal(operand, known)
    )
    return _COMPARE[expectation.op](subject, other)


def _is_in(subject: Any, known: Column, values: list[Any]) -> Any:
    listed = subject.isin([_literal(value, known) for value in values if value is not None])
    # To SQL, whether null is in a list is null; here it is listed, or it fails.
    known_to_be = functions.coalesce(listed, functions.lit(False))
    return known_to_be | subject.isNull() if None in values else known_to_be


def _literal(value: Any, compared: Column) -> Any:
    """A value as Spark must read it beside this column."""
    if isinstance(value, str) and compared.family is Family.TIME:
        value = as_moment(value)
    match value:
        case NowOperand(offset_seconds=seconds):
            now = functions.current_timestamp()
            return now + functions.make_dt_interval(secs=functions.lit(seconds))
        case datetime.datetime():
            # PySpark would take one without a zone for local time of this process; Spark, reading
            # a text, takes it for the session's.
            wall_clock = value.tzinfo is None and compared.type == "timestamp_ntz"
            kind = "timestamp_ntz" if wall_clock else "timestamp"
            return functions.lit(value.isoformat()).cast(kind)
        case datetime.date():
            return functions.lit(value.isoformat()).cast("date")
        case bool():
            return functions.lit(value)
        case int() if abs(value) >= _LONG_LIMIT:
            return functions.lit(decimal.Decimal(value))
    return functions.lit(value)


def subjects_in(expectation: Expectation) -> list[Subject]:
    own = [expectation.subject] if expectation.subject is not None else []
    return own + [subject for part in expectation.parts for subject in subjects_in(part)]


# A look at rows and groups that failed checks: all of them in one Spark job.

_SHOWN_CHARACTERS = 100
_SHOWN_COLUMNS = 8
# Types that have no order, by which the least and the greatest value could be found.
_UNORDERED = ("map<", "variant", "interval")

Culprit: TypeAlias = EachRow | EachGroup | Unique
Sample: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class _Glance:
    """What of a failed check is looked at: its number, which rows, which of their values."""

    number: int
    wrong: Any
    values: Mapping[str, Any]


def take_samples(
    frame: Any, columns: Columns, culprits: Mapping[int, Culprit]
) -> dict[int, tuple[Sample, ...]]:
    """Of each culprit's rows or groups, those with the least and the greatest values, as text."""
    if not culprits:
        return {}
    frames, names = [], {}
    for seen, glances in _passes(frame, columns, culprits):
        frames.append(_extremes(seen, glances))
        names.update({glance.number: list(glance.values) for glance in glances})
    samples: dict[int, list[Sample]] = {number: [] for number in culprits}
    for number, values in reduce(lambda one, other: one.unionAll(other), frames).collect():
        sample = dict(zip(names[number], map(_shortened, values), strict=True))
        if sample not in samples[number]:
            samples[number].append(sample)
    return {number: tuple(found) for number, found in samples.items()}


def _passes(
    frame: Any, columns: Columns, culprits: Mapping[int, Culprit]
) -> Iterator[tuple[Any, list[_Glance]]]:
    """What to look at, in the rows themselves and in each grouping of them."""
    rows = RowExpressions(columns)
    by_pass: dict[tuple[str, ...], dict[int, Culprit]] = {}
    for number, step in culprits.items():
        by_pass.setdefault(measures_of(step)[0].by, {})[number] = step
    for by, steps in by_pass.items():
        if not by:
            yield frame, [_glance_at_rows(n, step, rows, columns) for n, step in steps.items()]
            continue
        conditions = [step.condition for step in steps.values() if not isinstance(step, Unique)]
        groups = GroupExpressions(rows, by, conditions)
        yield (
            groups.frame(frame),
            [_glance_at_groups(n, step, groups) for n, step in steps.items()],
        )


def _glance_at_rows(number: int, step: Culprit, rows: RowExpressions, columns: Columns) -> _Glance:
    assert isinstance(step, EachRow), "only this looks at rows one by one"
    names = [columns.load(name).name for name in names_in(step.condition)]
    return _Glance(
        number=number,
        wrong=~rows.condition(step.condition),
        values={name: rows.column(name) for name in names[:_SHOWN_COLUMNS]},
    )


def _glance_at_groups(number: int, step: Culprit, groups: GroupExpressions) -> _Glance:
    keys = {name: functions.col(key) for key, name in groups.keys.items()}
    if isinstance(step, Unique):
        wrong = groups.repeated() | groups.null_key() if step.key else groups.repeated()
        measured = {"count(*)": functions.col(ROWS_OF_GROUP)}
    else:
        wrong = ~groups.condition(step.condition)
        measured = {
            str(replace(subject, group_by=())): functions.col(name)
            for name, subject in groups.properties.items()
            if subject in subjects_in(step.condition)
        }
    return _Glance(number=number, wrong=wrong, values=measured | keys)


def _extremes(frame: Any, glances: list[_Glance]) -> Any:
    """For each glance two rows: its number, and the values as texts."""
    seen = [
        pick(functions.when(glance.wrong, functions.struct(*_ordered(frame, glance))))
        for glance in glances
        for pick in (functions.max, functions.min)
    ]
    picked = [f"picked{number}" for number in range(len(seen))]
    aggregated = frame.agg(*(one.alias(name) for one, name in zip(seen, picked, strict=True)))
    rows = [
        functions.struct(
            functions.lit(glances[position // 2].number).alias("number"),
            _texts(name, len(glances[position // 2].values)).alias("texts"),
        )
        for position, name in enumerate(picked)
    ]
    return aggregated.select(functions.inline(functions.array(*rows)))


def _ordered(frame: Any, glance: _Glance) -> Iterator[Any]:
    """The values under names of their own; what has no order is ordered by its text."""
    values = list(glance.values.values())
    for number, field in enumerate(frame.select(*values).schema.fields):
        has_order = not any(word in field.dataType.simpleString() for word in _UNORDERED)
        value = values[number] if has_order else values[number].cast("string")
        yield value.alias(f"value{number}")


def _texts(picked: str, many: int) -> Any:
    fields = (functions.col(f"{picked}.value{number}") for number in range(many))
    return functions.array(
        *(functions.substring(field.cast("string"), 1, _SHOWN_CHARACTERS + 1) for field in fields)
    )


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[:_SHOWN_CHARACTERS] + "…"


# SQL's classes of errors that lie in the expression or in the data, not in the machinery.
_ASKED_WRONGLY = ("22", "42")
_BAD_PATTERN = "java.util.regex.PatternSyntaxException: "


def evaluate_checks(
    frame: Any, checks: Sequence[CheckSpec], *, dataset: str, stage: CheckStage
) -> tuple[CheckResult, ...]:
    """The result of each check on all rows of a DataFrame; none raises for what it looks at."""
    if not checks:
        return ()
    columns = columns_of(frame.schema)
    expectations = [expectation_from_json(dict(check.expectation)) for check in checks]
    steps = [plan(expectation, columns) for expectation in expectations]
    found: dict[Measure, Any] = {}
    for by, measures in passes(steps).items():
        found |= _measure(frame, RowExpressions(columns), by, measures)
    judged = [judge(step, found) for step in steps]
    culprits = {
        number: judgement.culprit
        for number, judgement in enumerate(judged)
        if judgement.culprit is not None and not judgement.verdict.passes
    }
    samples = take_samples(frame, columns, culprits)
    return tuple(
        CheckResult(
            name=check.name,
            stage=stage,
            dataset=dataset,
            on_error=check.on_error,
            passed=judgement.verdict.passes,
            expectation=str(expectation),
            reason=judgement.reason,
            samples=samples.get(number, ()),
        )
        for number, (check, expectation, judgement) in enumerate(
            zip(checks, expectations, judged, strict=True)
        )
    )


def unevaluated(
    checks: Sequence[CheckSpec], *, dataset: str, stage: CheckStage, reason: str
) -> tuple[CheckResult, ...]:
    """The results of checks on something that has no rows to look at: all failed."""
    return tuple(
        CheckResult(
            name=check.name,
            stage=stage,
            dataset=dataset,
            on_error=check.on_error,
            passed=False,
            expectation=str(expectation_from_json(dict(check.expectation))),
            reason=reason,
        )
        for check in checks
    )


def columns_of(schema: Any) -> Columns:
    """The columns of a Spark schema, structs with their fields."""
    return Columns(_fields(schema, ()))


def _fields(struct: Any, path: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(
        Column(
            path=(*path, field.name),
            type=field.dataType.simpleString(),
            fields=_fields(field.dataType, (*path, field.name))
            if field.dataType.typeName() == "struct"
            else (),
        )
        for field in struct.fields
    )


def _measure(
    frame: Any, rows: RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> dict[Measure, Any]:
    """One pass; if Spark refuses one of the measures, each is asked on its own."""
    try:
        return dict(zip(measures, _aggregated(frame, rows, by, measures), strict=True))
    except (PySparkException, Py4JError) as error:
        reason = _asked_wrongly(error)
        if reason is None:
            raise
    if len(measures) == 1:
        return {measures[0]: Unmeasured(reason=f"Spark cannot evaluate it: {reason}")}
    found: dict[Measure, Any] = {}
    for measure in measures:
        found |= _measure(frame, rows, by, [measure])
    return found


def _aggregated(
    frame: Any, rows: RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> list[Any]:
    if not by:
        return list(frame.agg(*map(rows.aggregate, measures)).collect()[0])
    conditions = [measure.condition for measure in measures if measure.condition is not None]
    groups = GroupExpressions(rows, by, conditions)
    return list(groups.frame(frame).agg(*map(groups.aggregate, measures)).collect()[0])


def _asked_wrongly(error: Exception) -> str | None:
    """What Spark says is wrong with an expression or a value; None if that is not the trouble."""
    text = str(error)
    # A pattern is compiled where the rows are, and its error comes back as an unknown one.
    if _BAD_PATTERN in text:
        return text.partition(_BAD_PATTERN)[2].splitlines()[0]
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    if state is None or not state.startswith(_ASKED_WRONGLY):
        return None
    return text.splitlines()[0].partition(" SQLSTATE")[0]


# The checks of one job: on what it reads before the transform, on what it wrote after it.


class JobChecks:
    """Evaluates a job's checks through its session's catalog, and keeps every result."""

    def __init__(self) -> None:
        self.results: list[CheckResult] = []

    def before(self, session: Any, transform: Transform, inputs: Mapping[str, Source]) -> None:
        """Checks the whole of each input, or raises if one that must hold does not."""
        self._check(session, CheckStage.PRE, transform, _declared(transform).inputs, inputs)

    def after(
        self,
        session: Any,
        transform: Transform,
        outputs: Mapping[str, Target],
        written: Collection[str],
    ) -> None:
        """Checks the whole of each written output, or raises if one that must hold does not."""
        specs = [spec for spec in _declared(transform).outputs if spec.name in written]
        self._check(session, CheckStage.POST, transform, specs, outputs)

    def to_json(self) -> list[dict[str, Any]]:
        return [result.to_json() for result in self.results]

    def _check(
        self,
        session: Any,
        stage: CheckStage,
        transform: Transform,
        specs: Iterable[InputSpec | OutputSpec],
        places: Mapping[str, Source] | Mapping[str, Target],
    ) -> None:
        found: list[CheckResult] = []
        for spec in specs:
            if spec.checks:
                found += _evaluated(session, stage, spec, places[spec.name].files is not None)
        self.results += found
        if stops := stopping(found):
            place = _place_of(stops[0].name, transform)
            raise ChecksFailed(
                before=stage is CheckStage.PRE,
                failed=[(result.dataset, result.name, result.reason) for result in stops],
                file=place.file,
                line=place.line,
            )


def _place_of(name: str, transform: Transform) -> Place:
    """The line on which the check of that name is declared: names are unique in a transform."""
    given: list[Input | Output] = [*transform.inputs.values(), *transform.outputs.values()]
    checks = (check for io in given for check in io.checks)
    return next((check.place for check in checks if check.name == name), transform.place)


def _declared(transform: Transform) -> Declaration:
    return describe(transform, module=transform.module, file=transform.place.file)


def _evaluated(
    session: Any, stage: CheckStage, spec: InputSpec | OutputSpec, is_files: bool
) -> tuple[CheckResult, ...]:
    dataset = str(spec.dataset)
    if is_files:
        reason = f"{dataset} is a tree of files, and checks look at the rows of tables"
        return unevaluated(spec.checks, dataset=dataset, stage=stage, reason=reason)
    frame = session.table(table_identifier(spec.dataset))
    return evaluate_checks(frame, spec.checks, dataset=dataset, stage=stage)
