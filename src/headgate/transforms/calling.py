"""A transform called on DataFrames, as a unit test does it, without store or job."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from headgate.transforms.definition import CONTEXT, Style, Transform
from headgate.transforms.job import (
    DataFrame,
    ReadMode,
    TransformContext,
    TransformInput,
    TransformOutput,
    WriteOptions,
)


def call_on_dataframes(
    transform: Transform, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The function's own result, or for `@transform` what it wrote, `{output: DataFrame}`.

    Arguments are those of the function. A DataFrame stands for an input; outputs, parameters
    and the context may be left out; an object that already reads or writes is passed as it is.
    """
    given = dict(inspect.signature(transform.function).bind_partial(*args, **kwargs).arguments)
    for name, parameter in transform.parameters.items():
        value = given.get(name, parameter)
        given[name] = value if isinstance(value, type(parameter)) else parameter.bind(value)
    if transform.wants_context and CONTEXT not in given:
        given[CONTEXT] = TransformContext(
            spark_session=_session(given),
            parameters={name: given[name].value for name in transform.parameters},
        )
    if transform.style is Style.TRANSFORM_DF:
        return transform.function(**given)
    return _call_writing(transform, given)


def _call_writing(transform: Transform, given: dict[str, Any]) -> dict[str, DataFrame]:
    written: dict[str, DataFrame] = {}
    for name in transform.inputs:
        if name in given and not hasattr(given[name], "dataframe"):
            given[name] = TransformInput(
                name, _always(given[name]), dataset=transform.inputs[name].dataset
            )
    for name in transform.outputs:
        if name not in given:
            given[name] = TransformOutput(
                name, _keeping(written, name), dataset=transform.outputs[name].dataset
            )
    transform.function(**given)
    return written


def _always(frame: DataFrame) -> Any:
    def read(_mode: ReadMode) -> DataFrame:
        return frame

    return read


def _keeping(written: dict[str, DataFrame], name: str) -> Any:
    def write(frame: DataFrame, _options: WriteOptions) -> None:
        written[name] = frame

    return write


def _session(given: Mapping[str, Any]) -> Any:
    sessions = (getattr(value, "sparkSession", None) for value in given.values())
    return next((session for session in sessions if session is not None), None)
