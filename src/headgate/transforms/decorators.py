"""Decorators that turn a function into a transform."""

import datetime
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

from headgate.model.jobspecs import FRESH_INPUTS, FRESH_NEVER, IncrementalSpec
from headgate.model.names import DatasetName
from headgate.transforms.declarations import Check, Input, Output, Param, names
from headgate.transforms.definition import CONTEXT, Options, Style, Transform
from headgate.transforms.source_location import SourceLocation, calling_location, location_of

Decorated = Callable[[Callable[..., Any]], Transform]
Duration = float | datetime.timedelta

# Name of the single output of a transform that returns a DataFrame.
_RETURNED = "output"


def transform(**ios: Input | Output | Param) -> Decorated:
    """Declare a transform whose function reads its inputs and writes its outputs itself.

    The function receives a `TransformInput`, a `TransformOutput` or a parameter for each keyword,
    and a `TransformContext` if it has a parameter `ctx`.

    ::

        @transform(orders=Input("raw.orders"), big=Output("sales.big"))
        def split(orders, big):
            big.write_dataframe(orders.dataframe().where("total > 100"))
    """

    def decorate(function: Callable[..., Any]) -> Transform:
        return _defined(Style.TRANSFORM, function, ios, called=tuple(ios))

    return decorate


def transform_df(output: Output, /, **inputs: Input | Param) -> Decorated:
    """Declare a transform whose function receives Spark DataFrames and returns one.

    :param output: the dataset to which the returned DataFrame is written.
    :param inputs: inputs and parameters, passed to the function by name.

    ::

        @transform_df(Output("sales.daily"), orders=Input("raw.orders"))
        def daily(orders):
            return orders.groupBy("day").sum("total")
    """
    return _returning(Style.TRANSFORM_DF, output, inputs)


def transform_pandas(output: Output, /, **inputs: Input | Param) -> Decorated:
    """Declare a transform like `transform_df`, with pandas DataFrames that must fit in memory."""
    return _returning(Style.TRANSFORM_PANDAS, output, inputs)


def _returning(style: Style, output: Output, inputs: Mapping[str, Input | Param]) -> Decorated:
    location = calling_location()
    if not isinstance(output, Output):
        raise location.error(f"{style.value} needs an Output first, not {output!r}")
    for name, declared in inputs.items():
        if isinstance(declared, Output):
            raise location.error(
                f"{name}: {style.value} has one Output, given first; use @transform for several"
            )
    if _RETURNED in inputs:
        raise location.error(f"an input of {style.value} cannot be named {_RETURNED!r}")

    def decorate(function: Callable[..., Any]) -> Transform:
        return _defined(style, function, {_RETURNED: output, **inputs}, called=tuple(inputs))

    return decorate


def incremental(
    require_incremental: bool = False,
    semantic_version: int = 1,
    snapshot_inputs: Iterable[str] | None = None,
    allow_retention: bool = False,
    strict_append: bool = False,
    v2_semantics: bool = False,
) -> Callable[[Transform], Transform]:
    """Let a transform read only rows added since its last build, where that is safe.

    Place it above `@transform`, `@transform_df` or `@transform_pandas`.

    :param require_incremental: fail the job instead of reading everything.
    :param semantic_version: increase it to make the next build a full one.
    :param snapshot_inputs: parameter names of inputs that are always read in full.
    :param allow_retention: ignore DELETE transactions on inputs; deleted rows stay in the outputs.
    :param strict_append: publish APPEND transactions only; overwriting fails the job.
    :param v2_semantics: accepted for compatibility; it has no effect.
    """
    location = calling_location()
    if callable(require_incremental):
        raise location.error("write @incremental() with parentheses")
    if isinstance(semantic_version, bool) or not isinstance(semantic_version, int):
        raise location.error(f"semantic_version must be an integer, not {semantic_version!r}")
    flags = {
        "require_incremental": require_incremental,
        "allow_retention": allow_retention,
        "strict_append": strict_append,
        "v2_semantics": v2_semantics,
    }
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise location.error(f"{flag} must be True or False, not {value!r}")
    snapshots = names(snapshot_inputs or (), "snapshot_inputs", location)
    declared = IncrementalSpec(
        require_incremental=require_incremental,
        semantic_version=semantic_version,
        snapshot_inputs=snapshots,
        allow_retention=allow_retention,
        strict_append=strict_append,
    )

    def decorate(decorated: Transform) -> Transform:
        made = _above("incremental", decorated, location)
        for name in snapshots:
            if name not in made.inputs:
                raise location.error(f"snapshot_inputs names {name!r}, which is not an input")
        return replace(made, incremental=declared)

    return decorate


def configure(
    *,
    fresh: str | Duration = FRESH_INPUTS,
    bundle_data: Iterable[str] = (),
    allowed_run_duration: Duration | None = None,
    profile: Iterable[str] = (),
    spark_conf: Mapping[str, object] | None = None,
    allow_empty: bool = False,
) -> Callable[[Transform], Transform]:
    """Set build options of a transform.

    Place it above `@transform`, `@transform_df` or `@transform_pandas`.

    :param fresh: `"inputs"` rebuilds the outputs when logic or inputs change, `"never"` in every
        build, and a duration also when the outputs are older than that.
    :param bundle_data: paths or globs of data files, relative to the root of the repository, that
        the job ships and that count as logic.
    :param allowed_run_duration: stop the job after this time.
    :param profile: names of Spark profiles.
    :param spark_conf: Spark settings of the job's session.
    :param allow_empty: let the function leave outputs unwritten.
    """
    location = calling_location()
    options = Options(
        fresh=_fresh(fresh, location),
        bundle_data=_patterns(bundle_data, location),
        allowed_run_seconds=None
        if allowed_run_duration is None
        else _seconds(allowed_run_duration, "allowed_run_duration", location),
        profile=names(profile, "profile", location),
        spark_conf=_conf(spark_conf or {}, location),
        allow_empty=allow_empty,
    )

    def decorate(decorated: Transform) -> Transform:
        return replace(_above("configure", decorated, location), options=options)

    return decorate


def _defined(
    style: Style, function: Callable[..., Any], ios: Mapping[str, Any], *, called: tuple[str, ...]
) -> Transform:
    if isinstance(function, Transform):
        raise calling_location().error(
            f"{function.name} is already a transform: a function declares one transform; put "
            f"@incremental and @configure above @{style.value}"
        )
    if not isinstance(function, FunctionType):
        raise calling_location().error(f"@{style.value} decorates a function, not {function!r}")
    location = location_of(function)
    made = Transform(
        style=style,
        function=function,
        inputs=_only(ios, Input),
        outputs=_only(ios, Output),
        parameters=_only(ios, Param),
        location=location,
    )
    for name, declared in ios.items():
        if not isinstance(declared, Input | Output | Param):
            raise location.error(f"{name} is {declared!r}, not an Input, an Output or a parameter")
    _check_datasets(made)
    _check_check_names(made)
    _check_signature(function, called, location)
    return made


def _only(ios: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    return {name: io for name, io in ios.items() if isinstance(io, kind)}


def _check_datasets(made: Transform) -> None:
    if not made.outputs:
        raise made.location.error(f"{made.name} has no Output")
    if CONTEXT in {*made.inputs, *made.outputs, *made.parameters}:
        raise made.location.error(f"{CONTEXT!r} is reserved for the context: rename that input")
    seen: set[DatasetName] = set()
    for output in made.outputs.values():
        if output.dataset in seen:
            raise made.location.error(f"{made.name} has the output {output.dataset} twice")
        seen.add(output.dataset)
    read: dict[DatasetName, Input] = {}
    for name, given in made.inputs.items():
        other = read.setdefault(given.dataset, given)
        if (other.branch, other.transaction) != (given.branch, given.transaction):
            raise made.location.error(
                f"{made.name} reads {given.dataset} at two versions; a job reads a dataset at one"
            )
        if given.dataset in seen and given.transaction is None:
            raise made.location.error(
                f"{made.name} reads its own output {given.dataset} as {name!r}; to read what it "
                "wrote before, use @incremental and the output's previous data"
            )


def _check_check_names(made: Transform) -> None:
    seen: set[str] = set()
    ios: list[Input | Output] = [*made.inputs.values(), *made.outputs.values()]
    checks: list[Check] = [check for io in ios for check in io.checks]
    for check in checks:
        if check.name in seen:
            raise made.location.error(f"{made.name} has two checks named {check.name!r}")
        seen.add(check.name)


def _check_signature(
    function: FunctionType, called: tuple[str, ...], location: SourceLocation
) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in called:
        known = parameters.get(name)
        if known is None and not takes_any:
            raise location.error(
                f"{function.__qualname__} has no parameter {name!r}, which its decorator declares"
            )
        if known is not None and known.kind is known.POSITIONAL_ONLY:
            raise location.error(f"{name!r} of {function.__qualname__} is positional-only")
    for name, parameter in parameters.items():
        by_name = parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        needed = by_name and parameter.default is parameter.empty
        if needed and name not in called and name != CONTEXT:
            raise location.error(
                f"parameter {name!r} of {function.__qualname__} is not declared: add "
                f"{name}=Input(...) to its decorator"
            )


def _above(decorator: str, decorated: object, location: SourceLocation) -> Transform:
    if not isinstance(decorated, Transform):
        raise location.error(f"put @{decorator} above @transform or @transform_df")
    return decorated


def _fresh(fresh: str | Duration, location: SourceLocation) -> str | float:
    if isinstance(fresh, str):
        if fresh not in {FRESH_INPUTS, FRESH_NEVER}:
            raise location.error(f"fresh must be 'inputs', 'never' or a maximum age, not {fresh!r}")
        return fresh
    return _seconds(fresh, "fresh", location)


def _seconds(duration: Duration, what: str, location: SourceLocation) -> float:
    if isinstance(duration, datetime.timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise location.error(f"{what} must be a timedelta or a number of seconds, not {duration!r}")
    if not math.isfinite(duration) or duration <= 0:
        raise location.error(f"{what} must be more than 0 seconds, not {duration!r}")
    return float(duration)


def _patterns(bundle_data: Iterable[str], location: SourceLocation) -> tuple[str, ...]:
    patterns = names(bundle_data, "bundle_data", location)
    for pattern in patterns:
        if pattern.startswith("/") or "\\" in pattern or ".." in pattern.split("/"):
            raise location.error(
                f"bundle_data {pattern!r} must be in the project: give a path or a glob "
                "relative to the repository's root, with forward slashes"
            )
    return patterns


def _conf(conf: Mapping[str, object], location: SourceLocation) -> Mapping[str, str]:
    plain: dict[str, str] = {}
    for key, value in conf.items():
        if not isinstance(value, str | int | float | bool):
            raise location.error(f"spark_conf {key!r} is {value!r}: use text, a number or a bool")
        plain[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return plain
