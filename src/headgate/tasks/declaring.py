"""`@task`: a typed function over a private directory, checked where it is written."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel

from headgate.errors import UnsafePath
from headgate.model.names import check_file_path
from headgate.tasks.checks import Check, checked
from headgate.tasks.controls import TaskControls
from headgate.tasks.metrics import MetricRecorder, MetricSpec
from headgate.tasks.tables import TableSpec
from headgate.transforms.where import Place, calling_place, place_of

DEFINITION = "__headgate_task__"
WORKSPACE, PARAMS, METRICS, SPARK = "workspace", "params", "metrics", "spark"
# The order that parameters have; those that a task does not use are left out.
_ORDER = (WORKSPACE, PARAMS, SPARK, METRICS)

Body = TypeVar("Body", bound=Callable[..., Any])


@dataclass(frozen=True)
class WorkspaceSpec:
    """Which part of a repository a task works on, and what must hold before and after."""

    prefix: str = "/"
    pre: Sequence[Check] = ()
    post: Sequence[Check] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        place = calling_place()
        if not isinstance(self.prefix, str) or not self.prefix:
            raise place.refuse(f"WorkspaceSpec.prefix is '/' or a directory, not {self.prefix!r}")
        if not isinstance(self.read_only, bool):
            raise place.refuse(f"WorkspaceSpec.read_only is a boolean, not {self.read_only!r}")
        object.__setattr__(self, "pre", checked(self.pre, "WorkspaceSpec.pre", place))
        object.__setattr__(self, "post", checked(self.post, "WorkspaceSpec.post", place))
        if self.directory:
            try:
                check_file_path(self.directory)
            except UnsafePath as error:
                raise place.refuse(f"WorkspaceSpec.prefix: {error.message}") from error

    @property
    def directory(self) -> str:
        """The prefix as a path in the repository; empty for all of it."""
        return self.prefix.strip("/")


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """A task as it was declared, with the models that its input and output have."""

    name: str
    owner_email: str
    description: str | None
    workspace: WorkspaceSpec | None
    metrics: MetricSpec | None
    controls: TaskControls
    tables: TableSpec | None
    strict_params: bool
    strict_input: bool
    function: Callable[..., Any]
    params_model: type[BaseModel]
    result_model: type[BaseModel]
    place: Place = field(compare=False)


def task(
    name: str,
    owner_email: str,
    description: str | None = None,
    workspace: WorkspaceSpec | None = None,
    metrics: MetricSpec | None = None,
    controls: TaskControls | None = None,
    strict_params: bool = False,
    strict_input: bool = False,
    *,
    tables: TableSpec | None = None,
    **unknown: object,
) -> Callable[[Body], Body]:
    """Makes a function a task; the function itself stays as it is and can be called in a test."""
    place = calling_place()
    if unknown:
        raise place.refuse(f"@task does not know {', '.join(map(repr, sorted(unknown)))}")
    _check_words(name, owner_email, description, place)
    _check_kinds(
        {
            "workspace": (workspace, WorkspaceSpec),
            "metrics": (metrics, MetricSpec),
            "controls": (controls, TaskControls),
            "tables": (tables, TableSpec),
        },
        place,
    )
    for what, flag in (("strict_params", strict_params), ("strict_input", strict_input)):
        if not isinstance(flag, bool):
            raise place.refuse(f"{what} is a boolean, not {flag!r}")
    if controls is not None and controls.publish_budget is not None and workspace is None:
        raise place.refuse("a publish_budget is for a task with a workspace")

    if tables is not None and workspace is None:
        raise place.refuse("tables are declared beside a workspace, whose branch they are on")

    def decorate(function: Body) -> Body:
        wanted = {
            WORKSPACE: workspace is not None,
            PARAMS: True,
            SPARK: tables is not None,
            METRICS: metrics is not None,
        }
        params_model, result_model = _check_signature(function, wanted)
        definition = TaskDefinition(
            name=name,
            owner_email=owner_email,
            description=description,
            workspace=workspace,
            metrics=metrics,
            controls=controls or TaskControls(),
            tables=tables,
            strict_params=strict_params,
            strict_input=strict_input,
            function=function,
            params_model=params_model,
            result_model=result_model,
            place=place_of(function),
        )
        setattr(function, DEFINITION, definition)
        return function

    return decorate


def _check_words(name: object, owner_email: object, description: object, place: Place) -> None:
    if not isinstance(name, str) or not name.strip() or set(name) & {"/", "\\"}:
        raise place.refuse(f"a task's name has words and no slashes, not {name!r}")
    if not isinstance(owner_email, str) or not owner_email.strip():
        raise place.refuse(f"a task's owner_email is not empty, not {owner_email!r}")
    if description is not None and not isinstance(description, str):
        raise place.refuse(f"a task's description is text, not {description!r}")


def _check_kinds(given: Mapping[str, tuple[object, type]], place: Place) -> None:
    for what, (value, kind) in given.items():
        if value is not None and not isinstance(value, kind):
            raise place.refuse(f"{what} is a {kind.__name__}, not {value!r}")


def _check_signature(
    function: Callable[..., Any], wanted: Mapping[str, bool]
) -> tuple[type[BaseModel], type[BaseModel]]:
    """The params and result models of a function whose parameters are those declared."""
    if not isinstance(function, FunctionType):
        raise calling_place().refuse(f"@task decorates a function, not {function!r}")
    place = place_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise place.refuse(
            f"{function.__name__} must be a plain function, neither async nor a generator"
        )
    expected = [name for name in _ORDER if wanted[name]]
    parameters = inspect.signature(function).parameters
    if list(parameters) != expected:
        raise place.refuse(
            f"{function.__name__} takes ({', '.join(parameters)}); by its declaration it takes "
            f"({', '.join(expected)})"
        )
    for parameter in parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise place.refuse(
                f"{parameter.name!r} of {function.__name__} must be a plain parameter"
            )
        if parameter.default is not parameter.empty:
            raise place.refuse(f"{parameter.name!r} of {function.__name__} has a default")
    return _check_hints(function, expected, place)


def _check_hints(
    function: FunctionType, expected: Sequence[str], place: Place
) -> tuple[type[BaseModel], type[BaseModel]]:
    # Spark's type is not looked at: a module need not import it to be declared.
    looked_at = {name: hint for name, hint in function.__annotations__.items() if name != SPARK}
    try:
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__=looked_at), globalns=function.__globals__
        )
    except Exception as error:
        raise place.refuse(
            f"the annotations of {function.__name__} cannot be resolved: {error}"
        ) from error
    exact = {WORKSPACE: Path, METRICS: MetricRecorder}
    for name in expected:
        if name in exact and hints.get(name) is not exact[name]:
            raise place.refuse(
                f"{name!r} of {function.__name__} is annotated as {exact[name].__name__}"
            )
    return (
        _model(hints.get(PARAMS), f"'params' of {function.__name__}", place),
        _model(hints.get("return"), f"what {function.__name__} returns", place),
    )


def _model(hint: object, what: str, place: Place) -> type[BaseModel]:
    if not isinstance(hint, type) or not issubclass(hint, BaseModel):
        raise place.refuse(f"{what} is annotated with a pydantic model, not {hint!r}")
    if issubclass(hint, RootModel):
        raise place.refuse(f"{what} is a RootModel; an input or output is an object with fields")
    return hint
