"""The decorators that turn a function into a transform."""

from __future__ import annotations

import datetime
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from headgate.model.jobspecs import FRESH_INPUTS, FRESH_NEVER, IncrementalSpec
from headgate.model.names import DatasetName
from headgate.transforms.declarations import Check, Input, Output, Param, names
from headgate.transforms.definition import CONTEXT, Options, Style, Transform
from headgate.transforms.where import Place, calling_place, place_of

Decorated = Callable[[Callable[..., Any]], Transform]
Duration = float | datetime.timedelta

# The name under which the one output of a transform_df is known.
_RETURNED = "output"


def transform(**ios: Input | Output | Param) -> Decorated:
    """The function gets its inputs and outputs by name, reads the former and writes the latter."""

    def decorate(function: Callable[..., Any]) -> Transform:
        return _defined(Style.TRANSFORM, function, ios, called=tuple(ios))

    return decorate


def transform_df(output: Output, /, **inputs: Input | Param) -> Decorated:
    """The function gets DataFrames by name and returns the one DataFrame that is written."""
    return _returning(Style.TRANSFORM_DF, output, inputs)


def transform_pandas(output: Output, /, **inputs: Input | Param) -> Decorated:
    """As `transform_df`, of pandas' DataFrames: all that is read has to fit into memory."""
    return _returning(Style.TRANSFORM_PANDAS, output, inputs)


def _returning(style: Style, output: Output, inputs: Mapping[str, Input | Param]) -> Decorated:
    place = calling_place()
    if not isinstance(output, Output):
        raise place.refuse(f"{style.value} needs an Output first, got {output!r}")
    for name, declared in inputs.items():
        if isinstance(declared, Output):
            raise place.refuse(
                f"{name}: {style.value} has one Output, given first; use transform for several"
            )
    if _RETURNED in inputs:
        raise place.refuse(f"an input of {style.value} cannot be called {_RETURNED!r}")

    def decorate(function: Callable[..., Any]) -> Transform:
        ios = {_RETURNED: output, **inputs}
        return _defined(style, function, ios, called=tuple(inputs))

    return decorate


def incremental(
    require_incremental: bool = False,
    semantic_version: int = 1,
    snapshot_inputs: Iterable[str] | None = None,
    allow_retention: bool = False,
    strict_append: bool = False,
    v2_semantics: bool = False,
) -> Callable[[Transform], Transform]:
    """The transform reads only what was added since it was last built, whenever that is safe.

    `v2_semantics` is accepted for familiarity; there is one behaviour.
    """
    place = calling_place()
    if callable(require_incremental):
        raise place.refuse("write @incremental() with its parentheses")
    if isinstance(semantic_version, bool) or not isinstance(semantic_version, int):
        raise place.refuse(f"semantic_version is a whole number, not {semantic_version!r}")
    flags = {
        "require_incremental": require_incremental,
        "allow_retention": allow_retention,
        "strict_append": strict_append,
        "v2_semantics": v2_semantics,
    }
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise place.refuse(f"{flag} is True or False, not {value!r}")
    snapshots = names(snapshot_inputs or (), "snapshot_inputs", place)
    declared = IncrementalSpec(
        require_incremental=require_incremental,
        semantic_version=semantic_version,
        snapshot_inputs=snapshots,
        allow_retention=allow_retention,
        strict_append=strict_append,
    )

    def decorate(decorated: Transform) -> Transform:
        made = _above("incremental", decorated, place)
        for name in snapshots:
            if name not in made.inputs:
                raise place.refuse(f"snapshot_inputs names {name!r}, which is no input")
        return made.changed(incremental=declared)

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
    """Says how a transform wants to be treated: freshness, data files, deadline, Spark settings."""
    place = calling_place()
    options = Options(
        fresh=_fresh(fresh, place),
        bundle_data=_patterns(bundle_data, place),
        allowed_run_seconds=None
        if allowed_run_duration is None
        else _seconds(allowed_run_duration, "allowed_run_duration", place),
        profile=names(profile, "profile", place),
        spark_conf=_conf(spark_conf or {}, place),
        allow_empty=allow_empty,
    )

    def decorate(decorated: Transform) -> Transform:
        return _above("configure", decorated, place).changed(options=options)

    return decorate


def _defined(
    style: Style, function: Callable[..., Any], ios: Mapping[str, Any], *, called: tuple[str, ...]
) -> Transform:
    if isinstance(function, Transform):
        raise calling_place().refuse(
            f"{function.name} is a transform already: a function makes one transform; put "
            f"@incremental and @configure above @{style.value}"
        )
    if not isinstance(function, FunctionType):
        raise calling_place().refuse(f"@{style.value} decorates a function, not {function!r}")
    place = place_of(function)
    made = Transform(
        style=style,
        function=function,
        inputs=_only(ios, Input),
        outputs=_only(ios, Output),
        parameters=_only(ios, Param),
        place=place,
    )
    for name, declared in ios.items():
        if not isinstance(declared, Input | Output | Param):
            raise place.refuse(f"{name} is {declared!r}, not an Input, an Output or a parameter")
    _check_datasets(made)
    _check_check_names(made)
    _check_signature(function, called, place)
    return made


def _only(ios: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    return {name: io for name, io in ios.items() if isinstance(io, kind)}


def _check_datasets(made: Transform) -> None:
    if not made.outputs:
        raise made.place.refuse(f"{made.name} has no Output")
    if CONTEXT in {*made.inputs, *made.outputs, *made.parameters}:
        raise made.place.refuse(f"{CONTEXT!r} is the context: give that input another name")
    seen: set[DatasetName] = set()
    for output in made.outputs.values():
        if output.dataset in seen:
            raise made.place.refuse(f"{made.name} has the output {output.dataset} twice")
        seen.add(output.dataset)
    read: dict[DatasetName, Input] = {}
    for name, given in made.inputs.items():
        other = read.setdefault(given.dataset, given)
        if (other.branch, other.transaction) != (given.branch, given.transaction):
            raise made.place.refuse(
                f"{made.name} reads {given.dataset} at two places; in a job a name means one thing"
            )
        if given.dataset in seen and given.transaction is None:
            raise made.place.refuse(
                f"{made.name} reads its own output {given.dataset} as {name!r}; to read what it "
                "wrote before, use @incremental and the output's previous data"
            )


def _check_check_names(made: Transform) -> None:
    seen: set[str] = set()
    ios: list[Input | Output] = [*made.inputs.values(), *made.outputs.values()]
    checks: list[Check] = [check for io in ios for check in io.checks]
    for check in checks:
        if check.name in seen:
            raise made.place.refuse(f"{made.name} has two checks named {check.name!r}")
        seen.add(check.name)


def _check_signature(function: FunctionType, called: tuple[str, ...], place: Place) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in called:
        known = parameters.get(name)
        if known is None and not takes_any:
            raise place.refuse(
                f"{function.__qualname__} has no parameter {name!r}, which its decorator declares"
            )
        if known is not None and known.kind is known.POSITIONAL_ONLY:
            raise place.refuse(f"parameter {name!r} of {function.__qualname__} is positional-only")
    for name, parameter in parameters.items():
        by_name = parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
        needed = by_name and parameter.default is parameter.empty
        if needed and name not in called and name != CONTEXT:
            raise place.refuse(
                f"parameter {name!r} of {function.__qualname__} is not declared: add "
                f"{name}=Input(...) to its decorator"
            )


def _above(decorator: str, decorated: object, place: Place) -> Transform:
    if not isinstance(decorated, Transform):
        raise place.refuse(f"put @{decorator} above @transform or @transform_df")
    return decorated


def _fresh(fresh: str | Duration, place: Place) -> str | float:
    if isinstance(fresh, str):
        if fresh not in {FRESH_INPUTS, FRESH_NEVER}:
            raise place.refuse(f"fresh is 'inputs', 'never' or a greatest age, not {fresh!r}")
        return fresh
    return _seconds(fresh, "fresh", place)


def _seconds(duration: Duration, what: str, place: Place) -> float:
    if isinstance(duration, datetime.timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise place.refuse(f"{what} is a timedelta or a number of seconds, not {duration!r}")
    if not math.isfinite(duration) or duration <= 0:
        raise place.refuse(f"{what} must be more than 0 seconds, not {duration!r}")
    return float(duration)


def _patterns(bundle_data: Iterable[str], place: Place) -> tuple[str, ...]:
    patterns = names(bundle_data, "bundle_data", place)
    for pattern in patterns:
        if pattern.startswith("/") or "\\" in pattern or ".." in pattern.split("/"):
            raise place.refuse(
                f"bundle_data {pattern!r} must lie in the project: give a path or a glob "
                "relative to the repository's root, with forward slashes"
            )
    return patterns


def _conf(conf: Mapping[str, object], place: Place) -> Mapping[str, str]:
    plain: dict[str, str] = {}
    for key, value in conf.items():
        if not isinstance(value, str | int | float | bool):
            raise place.refuse(f"spark_conf {key!r} is {value!r}: use a string, number or boolean")
        plain[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return plain
