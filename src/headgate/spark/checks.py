"""Evaluates the checks of a job on DataFrames, in as few passes over the rows as possible.

One aggregation computes every number about rows, columns and properties, and one more is needed for
each grouping that a check names. Checks of the schema cost no Spark job. Only where a check failed,
one last job reads sample values. `headgate.transforms.expectations` defines how nulls count.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions

from headgate.errors import ChecksFailed
from headgate.model.checks import CheckResult, CheckStage, blocking
from headgate.model.jobspecs import CheckSpec, Declaration, InputSpec, OutputSpec
from headgate.spark import check_columns, check_plan
from headgate.spark.check_columns import Column, Columns, Family
from headgate.spark.check_plan import Count, Each, Measure, SampledStep, Unique, Unmeasured
from headgate.spark.session import table_identifier
from headgate.spark.sql import quote
from headgate.transforms import Input, Output, Transform
from headgate.transforms import expectation_tree as tree
from headgate.transforms.discovery import describe
from headgate.transforms.source_location import SourceLocation


class JobChecks:
    """Evaluates a job's checks through its session's catalog, and keeps every result."""

    def __init__(self) -> None:
        self.results: list[CheckResult] = []

    def before(self, session: Any, transform: Transform, files: Collection[str]) -> None:
        """Check all rows of each input; raise if a check that must hold does not.

        `files` are the names of inputs and outputs that are trees of files.
        """
        self._check(session, CheckStage.PRE, transform, _declared(transform).inputs, files)

    def after(
        self, session: Any, transform: Transform, files: Collection[str], written: Collection[str]
    ) -> None:
        """Check all rows of each written output; raise if a check that must hold does not."""
        specs = [spec for spec in _declared(transform).outputs if spec.name in written]
        self._check(session, CheckStage.POST, transform, specs, files)

    def to_json(self) -> list[dict[str, Any]]:
        return [result.to_json() for result in self.results]

    def _check(
        self,
        session: Any,
        stage: CheckStage,
        transform: Transform,
        specs: Iterable[InputSpec | OutputSpec],
        files: Collection[str],
    ) -> None:
        found: list[CheckResult] = []
        for spec in specs:
            if not spec.checks:
                continue
            dataset = str(spec.dataset)
            if spec.name in files:
                reason = f"{dataset} is a tree of files, and only rows of tables can be checked"
                found += [_result(c, dataset, stage, False, reason) for c in spec.checks]
                continue
            frame = session.table(table_identifier(spec.dataset))
            found += evaluate_checks(frame, spec.checks, dataset=dataset, stage=stage)
        self.results += found
        if blocked := blocking(found):
            place = _place_of(blocked[0].name, transform)
            raise ChecksFailed(
                before=stage is CheckStage.PRE,
                failed=[(result.dataset, result.name, result.reason) for result in blocked],
                file=place.file,
                line=place.line,
            )


def _declared(transform: Transform) -> Declaration:
    return describe(transform, module=transform.module, file=transform.location.file)


def _place_of(name: str, transform: Transform) -> SourceLocation:
    """Return where the check of that name is declared: names are unique in a transform."""
    given: list[Input | Output] = [*transform.inputs.values(), *transform.outputs.values()]
    checks = (check for io in given for check in io.checks)
    return next((check.location for check in checks if check.name == name), transform.location)


def evaluate_checks(
    frame: Any, checks: Sequence[CheckSpec], *, dataset: str, stage: CheckStage
) -> tuple[CheckResult, ...]:
    """Return the result of each check on all rows of a DataFrame; failing data does not raise."""
    if not checks:
        return ()
    columns = Columns(_fields(frame.schema, ()))
    steps = [check_plan.plan(_expectation(check), columns) for check in checks]
    found: dict[Measure, Any] = {}
    for by, measures in check_plan.passes(steps).items():
        found |= _measure(frame, _RowExpressions(columns), by, measures)
    judged = [check_plan.judge(step, found) for step in steps]
    failed = {
        number: judgement.failed
        for number, judgement in enumerate(judged)
        if judgement.failed is not None and not judgement.verdict.passes
    }
    samples = _take_samples(frame, columns, failed)
    return tuple(
        _result(check, dataset, stage, one.verdict.passes, one.reason, samples.get(number, ()))
        for number, (check, one) in enumerate(zip(checks, judged, strict=True))
    )


def _result(
    check: CheckSpec,
    dataset: str,
    stage: CheckStage,
    passed: bool,
    reason: str,
    samples: tuple[_Sample, ...] = (),
) -> CheckResult:
    return CheckResult(
        name=check.name,
        stage=stage,
        dataset=dataset,
        on_error=check.on_error,
        passed=passed,
        expectation=str(_expectation(check)),
        reason=reason,
        samples=samples,
    )


def _expectation(check: CheckSpec) -> tree.Expectation:
    return tree.expectation_from_json(dict(check.expectation))


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


# SQLSTATE classes of errors in an expression or in the data, not in the engine.
_USER_ERRORS = ("22", "42")
_BAD_PATTERN = "java.util.regex.PatternSyntaxException: "


def _measure(
    frame: Any, rows: _RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> dict[Measure, Any]:
    """Compute measures in one pass; if Spark rejects one of them, compute each on its own."""
    try:
        return dict(zip(measures, _aggregate(frame, rows, by, measures), strict=True))
    except (PySparkException, Py4JError) as error:
        reason = _user_error(error)
        if reason is None:
            raise
    if len(measures) == 1:
        return {measures[0]: Unmeasured(reason=f"Spark cannot evaluate it: {reason}")}
    found: dict[Measure, Any] = {}
    for measure in measures:
        found |= _measure(frame, rows, by, [measure])
    return found


def _aggregate(
    frame: Any, rows: _RowExpressions, by: tuple[str, ...], measures: Sequence[Measure]
) -> list[Any]:
    if not by:
        return list(frame.agg(*map(rows.aggregate, measures)).collect()[0])
    conditions = [measure.condition for measure in measures if measure.condition is not None]
    groups = _GroupExpressions(rows, by, conditions)
    return list(groups.frame(frame).agg(*map(groups.aggregate, measures)).collect()[0])


def _user_error(error: Exception) -> str | None:
    """Return what is wrong with an expression or a value; None if the error is another one."""
    text = str(error)
    # A pattern is compiled by the executors, and its error has no SQLSTATE.
    if _BAD_PATTERN in text:
        return text.partition(_BAD_PATTERN)[2].splitlines()[0]
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    if state is None or not state.startswith(_USER_ERRORS):
        return None
    return text.splitlines()[0].partition(" SQLSTATE")[0]


_LONG_LIMIT = 2**63
# The number of rows of a group, under a name that no measure gets.
_GROUP_ROWS = "rows"

_PROPERTIES: Mapping[tree.Property, Callable[[Any], Any]] = {
    tree.Property.NULL_COUNT: lambda column: functions.count_if(column.isNull()),
    tree.Property.NULL_PERCENTAGE: lambda column: functions.avg(column.isNull().cast("int")),
    tree.Property.DISTINCT_COUNT: functions.count_distinct,
    tree.Property.APPROX_DISTINCT_COUNT: functions.approx_count_distinct,
    tree.Property.SUM: functions.sum,
    tree.Property.STANDARD_DEVIATION_SAMPLE: functions.stddev_samp,
    tree.Property.STANDARD_DEVIATION_POPULATION: functions.stddev_pop,
}

# Returns a subject's expression, and its column type.
_Resolve: TypeAlias = Callable[[tree.Subject], tuple[Any, Column]]


class _RowExpressions:
    """Expressions over the rows of a dataset."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def column(self, name: str) -> Any:
        """Return the column, or the struct's field, whatever characters its name has."""
        return functions.col(".".join(map(quote, self._columns.load(name).path)))

    def condition(self, expectation: tree.Expectation) -> Any:
        """Return a condition that is true, false, or null where a null decides nothing."""
        return _condition(expectation, self._resolve, self.column)

    def aggregate(self, measure: Measure) -> Any:
        match measure.metric:
            case Count.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
            case tree.Property():
                return self.property(measure.metric, measure.columns)
        raise AssertionError(f"{measure.metric} is not a measure of rows")

    def property(self, measured: tree.Property, names: Sequence[str]) -> Any:
        """Return a property of columns, over all rows or within a group."""
        columns = [self.column(name) for name in names]
        if measured is tree.Property.COUNT:
            return functions.count(functions.lit(1))
        together = columns[0] if len(columns) == 1 else functions.struct(*columns)
        return _PROPERTIES[measured](together)

    def _resolve(self, subject: tree.Subject) -> tuple[Any, Column]:
        assert subject.column is not None
        return self.column(subject.column), self._columns.load(subject.column)


class _GroupExpressions:
    """Expressions over groups of rows, each with the properties that conditions name."""

    def __init__(
        self, rows: _RowExpressions, by: Sequence[str], conditions: Iterable[tree.Expectation]
    ) -> None:
        self._rows = rows
        self.keys = {f"key{number}": name for number, name in enumerate(by)}
        subjects = dict.fromkeys(s for condition in conditions for s in _subjects_in(condition))
        self.properties = {f"property{number}": s for number, s in enumerate(subjects)}

    def frame(self, frame: Any) -> Any:
        """Return one row for each group: its keys, its number of rows, its properties."""
        keys = [self._rows.column(name).alias(key) for key, name in self.keys.items()]
        properties = [
            self._rows.property(s.property, [s.column] if s.column else []).alias(name)
            for name, s in self.properties.items()
            if s.property is not None
        ]
        rows = functions.count(functions.lit(1)).alias(_GROUP_ROWS)
        return frame.groupBy(*keys).agg(rows, *properties)

    def condition(self, expectation: tree.Expectation) -> Any:
        return _condition(expectation, self._resolve, functions.col)

    def repeated(self) -> Any:
        return functions.col(_GROUP_ROWS) > 1

    def null_key(self) -> Any:
        return reduce(operator.or_, (functions.isnull(key) for key in self.keys))

    def aggregate(self, measure: Measure) -> Any:
        rows = functions.col(_GROUP_ROWS)
        match measure.metric:
            case tree.Property.COUNT:
                return functions.coalesce(functions.sum(rows), functions.lit(0))
            case Count.GROUPS:
                return functions.count(functions.lit(1))
            case Count.REPEATED:
                return functions.count_if(self.repeated())
            case Count.NULL_KEYS:
                null_rows = functions.sum(functions.when(self.null_key(), rows))
                return functions.coalesce(null_rows, functions.lit(0))
            case Count.VIOLATIONS:
                assert measure.condition is not None
                return functions.count_if(~self.condition(measure.condition))
        raise AssertionError(f"{measure.metric} is not a measure of groups")

    def _resolve(self, subject: tree.Subject) -> tuple[Any, Column]:
        name = next(name for name, known in self.properties.items() if known == subject)
        # Every property is a number; its exact type does not matter to a comparison.
        return functions.col(name), Column(path=(name,), type="double")


def _condition(
    expectation: tree.Expectation, resolve: _Resolve, column: Callable[[str], Any]
) -> Any:
    """Return a condition on rows or groups; nulls as in SQL, except that `is_in` is never null."""
    parts = [_condition(part, resolve, column) for part in expectation.parts]
    match expectation.op:
        case tree.Op.ALL:
            return reduce(operator.and_, parts)
        case tree.Op.ANY:
            return reduce(operator.or_, parts)
        case tree.Op.NEGATE:
            return ~parts[0]
    assert expectation.subject is not None
    subject, known = resolve(expectation.subject)
    operand = tree.operand_value(expectation.operand)
    match expectation.op:
        case tree.Op.NON_NULL:
            return subject.isNotNull()
        case tree.Op.IS_NULL:
            return subject.isNull()
        case tree.Op.IS_IN:
            return _is_in(subject, known, [tree.operand_value(value) for value in operand])
        case tree.Op.RLIKE:
            return subject.rlike(operand)
        case tree.Op.ARRAY_CONTAINS:
            assert known.element is not None, "the plan rejects other types"
            return functions.array_contains(subject, _literal(operand, known.element))
        case tree.Op.ARRAY_SIZE:
            least, most = operand
            size = functions.array_size(subject)
            return size >= least if most is None else size.between(least, most)
    other = (
        column(operand.column)
        if isinstance(operand, tree.ColumnOperand)
        else _literal(operand, known)
    )
    return check_columns.COMPARISONS[expectation.op](subject, other)


def _is_in(subject: Any, known: Column, values: list[Any]) -> Any:
    listed = subject.isin([_literal(value, known) for value in values if value is not None])
    # In SQL, null IN (…) is null. Here null fails unless it is listed.
    found = functions.coalesce(listed, functions.lit(False))
    return found | subject.isNull() if None in values else found


def _literal(value: Any, compared: Column) -> Any:
    """Return a value as a literal that Spark can compare with this column."""
    if isinstance(value, str) and compared.family is Family.TIME:
        value = check_columns.parse_time(value)
    match value:
        case tree.NowOperand(offset_seconds=seconds):
            now = functions.current_timestamp()
            return now + functions.make_dt_interval(secs=functions.lit(seconds))
        case datetime.datetime():
            # Without a zone, PySpark would read it in the local time of this process; Spark casts a
            # text in the session's zone.
            wall_clock = value.tzinfo is None and compared.type == "timestamp_ntz"
            kind = "timestamp_ntz" if wall_clock else "timestamp"
            return functions.lit(value.isoformat()).cast(kind)
        case datetime.date():
            return functions.lit(value.isoformat()).cast("date")
        case int() if abs(value) >= _LONG_LIMIT:
            return functions.lit(decimal.Decimal(value))
    return functions.lit(value)


def _subjects_in(expectation: tree.Expectation) -> list[tree.Subject]:
    own = [expectation.subject] if expectation.subject is not None else []
    return own + [subject for part in expectation.parts for subject in _subjects_in(part)]


# --- samples of rows and groups that failed, all in one Spark job ----------------------------

_SHOWN_CHARACTERS = 100
_SHOWN_COLUMNS = 8
# Types without an order, of which there is no least and no greatest value.
_UNORDERED = ("map<", "variant", "interval")

_Sample: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    """The samples of one failed check: its number, the failing rows, the values to show."""

    number: int
    fails: Any
    values: Mapping[str, Any]


def _take_samples(
    frame: Any, columns: Columns, failed: Mapping[int, SampledStep]
) -> dict[int, tuple[_Sample, ...]]:
    """Return the failing rows or groups with the least and the greatest values, as text."""
    if not failed:
        return {}
    frames, names = [], {}
    for rows_or_groups, samplings in _samplings(frame, columns, failed):
        frames.append(_extremes(rows_or_groups, samplings))
        names.update({sampling.number: list(sampling.values) for sampling in samplings})
    samples: dict[int, list[_Sample]] = {number: [] for number in failed}
    for number, values in reduce(lambda one, other: one.unionAll(other), frames).collect():
        sample = dict(zip(names[number], map(_shortened, values), strict=True))
        if sample not in samples[number]:
            samples[number].append(sample)
    return {number: tuple(found) for number, found in samples.items()}


def _samplings(
    frame: Any, columns: Columns, failed: Mapping[int, SampledStep]
) -> Iterator[tuple[Any, list[_Sampling]]]:
    """Yield the frame of rows, and that of each grouping, with their samplings."""
    rows = _RowExpressions(columns)
    by_pass: dict[tuple[str, ...], dict[int, SampledStep]] = {}
    for number, step in failed.items():
        by_pass.setdefault(check_plan.measures_of(step)[0].by, {})[number] = step
    for by, steps in by_pass.items():
        if not by:
            yield frame, [_sample_rows(n, step, rows, columns) for n, step in steps.items()]
            continue
        conditions = [step.condition for step in steps.values() if not isinstance(step, Unique)]
        groups = _GroupExpressions(rows, by, conditions)
        yield groups.frame(frame), [_sample_groups(n, step, groups) for n, step in steps.items()]


def _sample_rows(
    number: int, step: SampledStep, rows: _RowExpressions, columns: Columns
) -> _Sampling:
    assert isinstance(step, Each), "the other steps are about groups"
    names = [columns.load(name).name for name in check_columns.columns_named(step.condition)]
    return _Sampling(
        number=number,
        fails=~rows.condition(step.condition),
        values={name: rows.column(name) for name in names[:_SHOWN_COLUMNS]},
    )


def _sample_groups(number: int, step: SampledStep, groups: _GroupExpressions) -> _Sampling:
    keys = {name: functions.col(key) for key, name in groups.keys.items()}
    if isinstance(step, Unique):
        fails = groups.repeated() | groups.null_key() if step.key else groups.repeated()
        measured = {"count(*)": functions.col(_GROUP_ROWS)}
    else:
        fails = ~groups.condition(step.condition)
        measured = {
            str(replace(subject, group_by=())): functions.col(name)
            for name, subject in groups.properties.items()
            if subject in _subjects_in(step.condition)
        }
    return _Sampling(number=number, fails=fails, values=measured | keys)


def _extremes(frame: Any, samplings: list[_Sampling]) -> Any:
    """Return two rows for each sampling: its number, and the values as texts."""
    picked: list[Any] = []
    rows = []
    for sampling, pick in product(samplings, (functions.max, functions.min)):
        name = f"picked{len(picked)}"
        values = functions.struct(*_ordered(frame, sampling))
        picked.append(pick(functions.when(sampling.fails, values)).alias(name))
        number = functions.lit(sampling.number).alias("number")
        rows.append(functions.struct(number, _texts(name, len(sampling.values)).alias("texts")))
    return frame.agg(*picked).select(functions.inline(functions.array(*rows)))


def _ordered(frame: Any, sampling: _Sampling) -> Iterator[Any]:
    """Yield the values under distinct names; a type without an order is ordered by its text."""
    values = list(sampling.values.values())
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
