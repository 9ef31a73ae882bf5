"""A transform: a function with what it reads, what it writes, and how it wants to be treated."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.model.jobspecs import FRESH_INPUTS, IncrementalSpec
from headgate.model.names import DatasetName
from headgate.transforms.declarations import Input, Output, Param
from headgate.transforms.where import Place

CONTEXT = "ctx"


class Style(enum.StrEnum):
    """How the function is called: with inputs and outputs, or with DataFrames, returning one."""

    TRANSFORM = "transform"
    TRANSFORM_DF = "transform_df"
    TRANSFORM_PANDAS = "transform_pandas"

    @property
    def returns(self) -> bool:
        """Whether the function returns what is written."""
        return self is not Style.TRANSFORM


@dataclass(frozen=True, kw_only=True)
class Options:
    """Declared by `@configure`."""

    # "inputs", "never", or the age in seconds after which an unchanged output is made again.
    fresh: str | float = FRESH_INPUTS
    bundle_data: tuple[str, ...] = ()
    allowed_run_seconds: float | None = None
    profile: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False


# Compared by identity: two declarations are two transforms, however alike.
@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """A declared transform; calling it in a test computes on the DataFrames it is given."""

    style: Style
    function: Callable[..., Any]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    parameters: Mapping[str, Param]
    place: Place
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

    def changed(self, **fields: Any) -> Transform:
        return replace(self, **fields)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes on DataFrames: the result, or `{output: DataFrame}` where it writes outputs."""
        # A call in a test is the only use of this; job-side classes stay out of plain imports.
        from headgate.transforms.calling import call_on_dataframes  # noqa: PLC0415

        return call_on_dataframes(self, args, kwargs)

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling the transform."""
        return self(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<transform {self.module}.{self.name} at {self.place.file}:{self.place.line}>"
