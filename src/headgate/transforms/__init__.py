"""API for pipeline code, as in `from headgate.transforms import transform_df, Input, Output`."""

from headgate.transforms import expectations
from headgate.transforms.declarations import (
    BooleanParam,
    Check,
    FloatParam,
    Input,
    IntegerParam,
    Output,
    StringParam,
)
from headgate.transforms.decorators import (
    configure,
    incremental,
    transform,
    transform_df,
    transform_pandas,
)
from headgate.transforms.definition import Transform
from headgate.transforms.discovery import Pipeline
from headgate.transforms.runtime import (
    FileStatus,
    FileSystem,
    TransformContext,
    TransformInput,
    TransformOutput,
)

__all__ = [
    "BooleanParam",
    "Check",
    "FileStatus",
    "FileSystem",
    "FloatParam",
    "Input",
    "IntegerParam",
    "Output",
    "Pipeline",
    "StringParam",
    "Transform",
    "TransformContext",
    "TransformInput",
    "TransformOutput",
    "configure",
    "expectations",
    "incremental",
    "transform",
    "transform_df",
    "transform_pandas",
]
