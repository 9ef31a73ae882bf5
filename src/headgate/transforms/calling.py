"""A transform called on DataFrames, as a unit test does it, without store or job.

A DataFrame stands for an input. `{"added": …, "previous": …}` stands for one of an incremental
run, and makes the call one; a DataFrame in place of an output is what that held before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headgate.errors import Invalid
from headgate.transforms.definition import CONTEXT, Transform
from headgate.transforms.job import (
    DataFrame,
    ReadMode,
    TransformContext,
    TransformInput,
    TransformOutput,
    WriteMode,
    WriteOptions,
)

_MODES = frozenset(mode.value for mode in ReadMode)


def call_on_dataframes(
    transform: Transform, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The function's own result, or for `@transform` what it wrote, `{output: DataFrame}`.

    Arguments are those of the function; outputs, parameters and the context may be left out; an
    object that already reads or writes is passed as it is.
    """
    given = dict(inspect.signature(transform.function).bind_partial(*args, **kwargs).arguments)
    for name, parameter in transform.parameters.items():
        value = given.get(name, parameter)
        given[name] = value if isinstance(value, type(parameter)) else parameter.bind(value)
    incremental = any(isinstance(given.get(name), Mapping) for name in transform.inputs)
    if transform.wants_context and CONTEXT not in given:
        given[CONTEXT] = TransformContext(
            spark_session=_session(given),
            is_incremental=incremental,
            parameters={name: given[name].value for name in transform.parameters},
        )
    if transform.style.returns:
        for name in transform.inputs:
            if isinstance(given.get(name), Mapping):
                given[name] = _reader(name, given[name])(ReadMode.ADDED)
        return transform.function(**given)
    return _call_writing(transform, given, incremental=incremental)


def _call_writing(
    transform: Transform, given: dict[str, Any], *, incremental: bool
) -> dict[str, DataFrame]:
    written: dict[str, DataFrame] = {}
    for name, declared in transform.inputs.items():
        if name in given and not hasattr(given[name], "dataframe"):
            given[name] = TransformInput(
                name,
                _reader(name, given[name]),
                dataset=declared.dataset,
                default_mode=ReadMode.ADDED if incremental else ReadMode.CURRENT,
            )
    for name, output in transform.outputs.items():
        held = given.get(name)
        if held is None or not hasattr(held, "write_dataframe"):
            given[name] = TransformOutput(
                name,
                _keeper(written, name),
                dataset=output.dataset,
                read=_output_reader(written, name, held),
                options=WriteOptions(mode=WriteMode.MODIFY if incremental else WriteMode.REPLACE),
            )
    transform.function(**given)
    return written


def _reader(name: str, given: Any) -> Callable[[ReadMode], DataFrame]:
    if not isinstance(given, Mapping):
        return lambda mode: given.limit(0) if mode is ReadMode.PREVIOUS else given
    if ReadMode.ADDED not in given or not _MODES.issuperset(given):
        raise Invalid(f"{name}: give {{'added': …}}, with 'previous' and 'current' where needed.")

    def read(mode: ReadMode) -> DataFrame:
        if mode in given:
            return given[mode]
        if mode is ReadMode.CURRENT and ReadMode.PREVIOUS in given:
            return given[ReadMode.PREVIOUS].unionByName(given[ReadMode.ADDED])
        added = given[ReadMode.ADDED]
        return added.limit(0) if mode is ReadMode.PREVIOUS else added

    return read


def _keeper(written: dict[str, DataFrame], name: str) -> Callable[[DataFrame, WriteOptions], None]:
    def write(frame: DataFrame, options: WriteOptions) -> None:
        again = name in written and options.mode is not WriteMode.REPLACE
        written[name] = written[name].unionByName(frame) if again else frame

    return write


def _output_reader(
    written: Mapping[str, DataFrame], name: str, held: DataFrame | None
) -> Callable[[ReadMode, Any], DataFrame]:
    """What it held before, what this call gave it, or both."""

    def read(mode: ReadMode, _schema: Any) -> DataFrame:
        new = written.get(name)
        if mode is ReadMode.PREVIOUS or new is None:
            if held is None:
                raise Invalid(f"{name} holds nothing: give the call {name}=<what it held before>.")
            return held
        return new if mode is ReadMode.ADDED or held is None else held.unionByName(new)

    return read


def _session(given: Mapping[str, Any]) -> Any:
    frames = [
        frame
        for value in given.values()
        for frame in (value.values() if isinstance(value, Mapping) else (value,))
    ]
    sessions = (getattr(frame, "sparkSession", None) for frame in frames)
    return next((session for session in sessions if session is not None), None)
