"""Calls the function of a transform in a job, and locates errors in user code."""

import os
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headgate.errors import HeadgateError, NothingWritten, UserCodeFailed
from headgate.transforms.definition import CONTEXT, Style, Transform
from headgate.transforms.runtime import TransformContext, TransformInput, TransformOutput

_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_OWN_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a function: the outputs that it wrote, or that it aborted the job."""

    written: tuple[str, ...]
    aborted: bool
    # Written outputs whose last write mode was `replace`.
    replaced: tuple[str, ...] = ()


def run_transform(
    transform: Transform,
    inputs: Mapping[str, TransformInput],
    outputs: Mapping[str, TransformOutput],
    ctx: TransformContext,
) -> Outcome:
    """Call the function once; raise for unwritten outputs unless `allow_empty` is set."""
    try:
        if transform.style.returns:
            _run_returning(transform, inputs, outputs, ctx)
        else:
            _call(transform, {**inputs, **outputs}, ctx)
    except HeadgateError:
        raise
    except Exception as error:
        raise user_code_failed(transform, error) from error
    if ctx.aborted:
        return Outcome(written=(), aborted=True)
    unwritten = [output.path for output in outputs.values() if not output.written]
    if unwritten and not transform.options.allow_empty:
        raise NothingWritten(
            transform=f"{transform.module}.{transform.name}",
            outputs=unwritten,
            remedy="It returned None: end it with `return` and the rows of its output"
            if transform.style.returns
            else "Write every output",
            file=transform.location.file,
            line=transform.location.line,
        )
    written = tuple(name for name, output in outputs.items() if output.written)
    replaced = tuple(name for name in written if outputs[name].replaces)
    return Outcome(written=written, replaced=replaced, aborted=False)


def _run_returning(
    transform: Transform,
    inputs: Mapping[str, TransformInput],
    outputs: Mapping[str, TransformOutput],
    ctx: TransformContext,
) -> None:
    in_pandas = transform.style is Style.TRANSFORM_PANDAS
    frames = {
        name: given.pandas() if in_pandas else given.dataframe() for name, given in inputs.items()
    }
    result = _call(transform, frames, ctx)
    if result is None or ctx.aborted:
        return
    # Only pandas DataFrames have `iloc`, only Spark DataFrames have `schema`.
    if not hasattr(result, "iloc" if in_pandas else "schema"):
        kind = "pandas DataFrame" if in_pandas else "DataFrame"
        raise TypeError(
            f"{transform.name} returned {type(result).__name__}; it must return a {kind}"
        )
    (output,) = outputs.values()
    if in_pandas:
        output.write_pandas(result)
    else:
        output.write_dataframe(result)


def _call(transform: Transform, given: Mapping[str, Any], ctx: TransformContext) -> Any:
    values = ctx.parameters
    bound = {
        name: parameter.bind(values[name]) if name in values else parameter
        for name, parameter in transform.parameters.items()
    }
    arguments = {**given, **bound}
    if transform.wants_context:
        arguments[CONTEXT] = ctx
    return transform.function(**arguments)


def user_code_failed(transform: Transform, error: Exception) -> UserCodeFailed:
    """Return the error with its traceback, at the innermost line of the user's project."""
    own = (transform.location.file, transform.location.line)
    file, line = users_line(error.__traceback__) or own
    return UserCodeFailed(
        doing=f"{transform.module}.{transform.name}",
        file=file,
        line=line,
        reason=_one_line(error),
        traceback="".join(traceback.format_exception(error)),
    )


def users_line(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return the innermost line outside the standard library, installed packages and Headgate."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        if not file.startswith(("<", _STANDARD_LIBRARY, _OWN_PACKAGE)) and not any(
            part in file for part in _INSTALLED
        ):
            found = (file, line)
    return found


def _one_line(error: Exception) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}".rstrip(": ").rstrip(".")
