"""A declared transform, and calls of it on plain DataFrames.

A unit test calls a transform without a store or a job. A DataFrame is the content of an input;
`{"added": …, "previous": …}` is an input of an incremental run and makes the call incremental; a
DataFrame given for an output is its content before the run.
"""

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import Invalid
from headgate.model.jobspecs import FRESH_INPUTS, IncrementalSpec
from headgate.model.names import DatasetName
from headgate.transforms import runtime
from headgate.transforms.declarations import Input, Output, Param
from headgate.transforms.source_location import SourceLocation

CONTEXT = "ctx"


class Style(enum.StrEnum):
    """Calling convention: with inputs and outputs, or with DataFrames and returning one."""

    TRANSFORM = "transform"
    TRANSFORM_DF = "transform_df"
    TRANSFORM_PANDAS = "transform_pandas"

    @property
    def returns(self) -> bool:
        """True if the function returns the data to write."""
        return self is not Style.TRANSFORM


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options set by `@configure`."""

    # "inputs", "never", or the age in seconds after which an unchanged output is rebuilt.
    fresh: str | float = FRESH_INPUTS
    bundle_data: tuple[str, ...] = ()
    allowed_run_seconds: float | None = None
    profile: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False


# Compared by identity: two equal declarations are two transforms.
@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """A declared transform; a unit test calls it on DataFrames."""

    style: Style
    function: Callable[..., Any]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    parameters: Mapping[str, Param]
    location: SourceLocation
    options: Options = field(default_factory=Options)
    incremental: IncrementalSpec | None = None

    @property
    def name(self) -> str:
        return self.function.__qualname__

    @property
    def module(self) -> str:
        return self.function.__module__

    @property
    def datasets_written(self) -> frozenset[DatasetName]:
        return frozenset(output.dataset for output in self.outputs.values())

    @property
    def wants_context(self) -> bool:
        return CONTEXT in inspect.signature(self.function).parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on DataFrames.

        Returns the function's result, or `{output: DataFrame}` for `@transform`. Outputs,
        parameters and the context may be left out; an argument that already has the methods of an
        input or an output is passed unchanged.
        """
        return _call_on_dataframes(self, args, kwargs)

    compute = __call__

    def __repr__(self) -> str:
        return f"<transform {self.module}.{self.name} at {self.location.file}:{self.location.line}>"


_MODES = frozenset(mode.value for mode in runtime.ReadMode)


def _call_on_dataframes(
    transform: Transform, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    given = dict(inspect.signature(transform.function).bind_partial(*args, **kwargs).arguments)
    for name, parameter in transform.parameters.items():
        value = given.get(name, parameter)
        given[name] = value if isinstance(value, type(parameter)) else parameter.bind(value)
    incremental = any(isinstance(given.get(name), Mapping) for name in transform.inputs)
    if transform.wants_context and CONTEXT not in given:
        given[CONTEXT] = runtime.TransformContext(
            spark_session=_session(given),
            is_incremental=incremental,
            parameters={name: given[name].value for name in transform.parameters},
        )
    if transform.style.returns:
        for name in transform.inputs:
            if isinstance(given.get(name), Mapping):
                given[name] = _reader(name, given[name])(runtime.ReadMode.ADDED)
        return transform.function(**given)
    return _call_writing(transform, given, incremental=incremental)


def _call_writing(
    transform: Transform, given: dict[str, Any], *, incremental: bool
) -> dict[str, runtime.DataFrame]:
    written: dict[str, runtime.DataFrame] = {}
    for name, declared in transform.inputs.items():
        if name in given and not hasattr(given[name], "dataframe"):
            given[name] = runtime.TransformInput(
                name,
                _reader(name, given[name]),
                dataset=declared.dataset,
                default_mode=runtime.ReadMode.ADDED if incremental else runtime.ReadMode.CURRENT,
            )
    for name, output in transform.outputs.items():
        before = given.get(name)
        if before is None or not hasattr(before, "write_dataframe"):
            given[name] = runtime.TransformOutput(
                name,
                _writer(written, name),
                dataset=output.dataset,
                read=_output_reader(written, name, before),
                options=runtime.WriteOptions(
                    mode=runtime.WriteMode.MODIFY if incremental else runtime.WriteMode.REPLACE
                ),
            )
    transform.function(**given)
    return written


def _reader(name: str, given: Any) -> Callable[[runtime.ReadMode], runtime.DataFrame]:
    if not isinstance(given, Mapping):
        return lambda mode: given.limit(0) if mode is runtime.ReadMode.PREVIOUS else given
    if runtime.ReadMode.ADDED not in given or not _MODES.issuperset(given):
        raise Invalid(f"{name}: give {{'added': …}}, optionally with 'previous' and 'current'.")

    def read(mode: runtime.ReadMode) -> runtime.DataFrame:
        if mode in given:
            return given[mode]
        if mode is runtime.ReadMode.CURRENT and runtime.ReadMode.PREVIOUS in given:
            return given[runtime.ReadMode.PREVIOUS].unionByName(given[runtime.ReadMode.ADDED])
        added = given[runtime.ReadMode.ADDED]
        return added.limit(0) if mode is runtime.ReadMode.PREVIOUS else added

    return read


def _writer(
    written: dict[str, runtime.DataFrame], name: str
) -> Callable[[runtime.DataFrame, runtime.WriteOptions], None]:
    def write(frame: runtime.DataFrame, options: runtime.WriteOptions) -> None:
        again = name in written and options.mode is not runtime.WriteMode.REPLACE
        written[name] = written[name].unionByName(frame) if again else frame

    return write


def _output_reader(
    written: Mapping[str, runtime.DataFrame], name: str, before: runtime.DataFrame | None
) -> Callable[[runtime.ReadMode, Any], runtime.DataFrame]:

    def read(mode: runtime.ReadMode, _schema: Any) -> runtime.DataFrame:
        new = written.get(name)
        if mode is runtime.ReadMode.PREVIOUS or new is None:
            if before is None:
                raise Invalid(f"{name} has no previous content: pass {name}=<DataFrame>.")
            return before
        return new if mode is runtime.ReadMode.ADDED or before is None else before.unionByName(new)

    return read


def _session(given: Mapping[str, Any]) -> Any:
    frames = [
        frame
        for value in given.values()
        for frame in (value.values() if isinstance(value, Mapping) else (value,))
    ]
    sessions = (getattr(frame, "sparkSession", None) for frame in frames)
    return next((session for session in sessions if session is not None), None)
