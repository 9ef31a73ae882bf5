"""`@task`: a typed function over a private directory, checked where it is written."""

from __future__ import annotations

import enum
import inspect
import itertools
import time
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel

from headgate.errors import Invalid, InvalidName, UnsafePath, WorkspaceCheckFailed
from headgate.model.names import DatasetName, check_file_path, parse_dataset_name
from headgate.transforms.where import Place, calling_place, place_of

# What a task may demand of its workspace: files, directories, globs, or a function's verdict.

# A function of the workspace: False, a sentence, or an exception says that it is not as it must be.
CheckFunction = Callable[[Path], object]


class CheckKind(enum.StrEnum):
    FILE = "require_file"
    DIRECTORY = "require_dir"
    GLOB = "require_glob"
    NO_GLOB = "forbid_glob"


class Phase(enum.StrEnum):
    PRE = "pre"
    POST = "post"


@dataclass(frozen=True, kw_only=True)
class PathCheck:
    """One demand on the paths of a workspace."""

    kind: CheckKind
    path: str
    min_count: int = 1
    max_count: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.path!r})"


Check = PathCheck | CheckFunction


def require_file(path: str | PurePath) -> PathCheck:
    """The workspace has a file at this path."""
    return PathCheck(kind=CheckKind.FILE, path=_relative(path, calling_place()))


def require_dir(path: str | PurePath) -> PathCheck:
    """The workspace has a directory at this path."""
    return PathCheck(kind=CheckKind.DIRECTORY, path=_relative(path, calling_place()))


def require_glob(
    pattern: str | PurePath, min_count: int = 1, max_count: int | None = None
) -> PathCheck:
    """So many files match the pattern."""
    place = calling_place()
    for what, count in (("min_count", min_count), ("max_count", max_count)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise place.refuse(f"{what} of require_glob is a whole number, not {count!r}")
    if min_count < 0 or (max_count is not None and max_count < min_count):
        raise place.refuse(
            f"require_glob needs 0 <= min_count <= max_count, not {min_count} and {max_count}"
        )
    return PathCheck(
        kind=CheckKind.GLOB,
        path=_relative(pattern, place),
        min_count=min_count,
        max_count=max_count,
    )


def forbid_glob(pattern: str | PurePath) -> PathCheck:
    """No file matches the pattern."""
    return PathCheck(kind=CheckKind.NO_GLOB, path=_relative(pattern, calling_place()))


def checked(checks: object, what: str, place: Place) -> tuple[Check, ...]:
    """The checks of a declaration, each of which must be one."""
    if isinstance(checks, str) or not isinstance(checks, Sequence):
        raise place.refuse(f"{what} is a list of checks, not {checks!r}")
    for check in checks:
        if not isinstance(check, PathCheck) and not callable(check):
            raise place.refuse(f"{what} has {check!r}, which is neither a check nor a function")
    return tuple(checks)


def check_workspace(checks: Sequence[Check], workspace: Path, phase: Phase) -> None:
    """Raises for the first check, in their order, that the workspace does not pass."""
    for check in checks:
        if isinstance(check, PathCheck):
            name, reason = str(check), _look(check, workspace)
        else:
            name, reason = getattr(check, "__name__", repr(check)), _ask(check, workspace)
        if reason is not None:
            raise WorkspaceCheckFailed(phase=phase, check=name, reason=reason)


def _look(check: PathCheck, workspace: Path) -> str | None:
    if check.kind is CheckKind.FILE:
        return None if _is_file(workspace / check.path) else f"there is no file {check.path!r}"
    if check.kind is CheckKind.DIRECTORY:
        found = workspace / check.path
        there = found.is_dir() and not found.is_symlink()
        return None if there else f"there is no directory {check.path!r}"
    matching = (path for path in workspace.glob(check.path) if _is_file(path))
    if check.kind is CheckKind.NO_GLOB:
        first = next(matching, None)
        return None if first is None else f"{str(first.relative_to(workspace))!r} matches it"
    enough = check.min_count if check.max_count is None else check.max_count + 1
    count = sum(1 for _ in itertools.islice(matching, enough))
    if count < check.min_count:
        return f"{count} files match, at least {check.min_count} must"
    if check.max_count is not None and count > check.max_count:
        return f"more than {check.max_count} files match, at most {check.max_count} may"
    return None


def _ask(check: CheckFunction, workspace: Path) -> str | None:
    try:
        verdict = check(workspace)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f": {error}" if str(error) else ""
        return f"it raised {type(error).__name__}{said} ({last.filename}:{last.lineno})"
    if isinstance(verdict, str):
        return verdict
    return "it returned False" if verdict is False else None


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _relative(path: str | PurePath, place: Place) -> str:
    """A path in the workspace, with forward slashes; everything else is refused where it stands."""
    if isinstance(path, PurePath):
        drive, text = path.drive, path.as_posix()
    elif isinstance(path, str):
        drive, text = "", path
    else:
        raise place.refuse(f"a check's path is text or a path, not {path!r}")
    parts = text.split("/")
    if drive or text.startswith("/") or "\\" in text or (len(parts[0]) == 2 and parts[0][1] == ":"):
        raise place.refuse(f"{text!r} must lie in the workspace: give a relative path with slashes")
    if any(part in {"", ".", ".."} for part in parts):
        raise place.refuse(f"{text!r} has an empty, '.' or '..' part")
    return text


# How a task wants to be treated: retries, deadlines, limits, and time to publish.

_MOST_RETRIES = 10


class RetryLogic(enum.StrEnum):
    FIXED = "FIXED"
    EXPONENTIAL_BACKOFF = "EXPONENTIAL_BACKOFF"
    LINEAR_BACKOFF = "LINEAR_BACKOFF"


class OnTimeout(enum.StrEnum):
    TIME_OUT_WF = "TIME_OUT_WF"
    RETRY = "RETRY"
    ALERT_ONLY = "ALERT_ONLY"


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed attempt is followed by another, and after how long."""

    count: int = 3
    logic: str = RetryLogic.FIXED
    delay_seconds: int = 60
    max_delay_seconds: int = 0
    jitter_ms: int = 0

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("count", "delay_seconds", "max_delay_seconds", "jitter_ms"), place)
        if self.count > _MOST_RETRIES:
            raise place.refuse(f"RetryPolicy.count is at most {_MOST_RETRIES}, not {self.count}")
        _one_of(self.logic, RetryLogic, "RetryPolicy.logic", place)

    def delay_before(self, retry: int) -> float:
        """Seconds to wait before the nth retry, counted from 1; without the jitter."""
        factor: int = {
            RetryLogic.FIXED: 1,
            RetryLogic.LINEAR_BACKOFF: retry,
            RetryLogic.EXPONENTIAL_BACKOFF: 2 ** (retry - 1),
        }[RetryLogic(self.logic)]
        seconds = self.delay_seconds * factor
        return min(seconds, self.max_delay_seconds) if self.max_delay_seconds else seconds


@dataclass(frozen=True)
class TimeoutPolicy:
    """How long an attempt may take, may stay silent, may wait; 0 is without end."""

    policy: str = OnTimeout.TIME_OUT_WF
    seconds: int = 0
    response_seconds: int = 600
    poll_seconds: int = 0
    total_seconds: int = 0

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("seconds", "response_seconds", "poll_seconds", "total_seconds"), place)
        _one_of(self.policy, OnTimeout, "TimeoutPolicy.policy", place)
        if self.response_seconds < 1:
            raise place.refuse("TimeoutPolicy.response_seconds is at least 1")


@dataclass(frozen=True)
class ExecutionLimits:
    """How many attempts may be under way, and how many may begin in a time."""

    concurrent_exec_limit: int | None = None
    rate_limit_frequency_in_seconds: int | None = None
    rate_limit_per_frequency: int | None = None

    def __post_init__(self) -> None:
        place = calling_place()
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        _whole(self, given, place, least=1)
        if (self.rate_limit_frequency_in_seconds is None) != (
            self.rate_limit_per_frequency is None
        ):
            raise place.refuse(
                "ExecutionLimits needs both rate_limit_frequency_in_seconds and "
                "rate_limit_per_frequency, or neither"
            )


@dataclass(frozen=True)
class PublishBudget:
    """How long publishing and reporting may take; the sum is reserved in the response timeout."""

    observed_merge_p99_seconds: int
    safety_margin_seconds: int
    lakefs_merge_timeout_seconds: int
    conductor_completion_timeout_seconds: int
    worker_shutdown_grace_seconds: int
    heartbeat_interval_seconds: int

    def __post_init__(self) -> None:
        place = calling_place()
        _whole(self, ("observed_merge_p99_seconds", "safety_margin_seconds"), place)
        timed = (
            "lakefs_merge_timeout_seconds",
            "conductor_completion_timeout_seconds",
            "worker_shutdown_grace_seconds",
            "heartbeat_interval_seconds",
        )
        _whole(self, timed, place, least=1)
        needed = self.observed_merge_p99_seconds + self.safety_margin_seconds
        if self.lakefs_merge_timeout_seconds < needed:
            raise place.refuse(
                f"PublishBudget.lakefs_merge_timeout_seconds is {self.lakefs_merge_timeout_seconds}"
                f", less than the observed p99 plus the safety margin ({needed})"
            )

    @property
    def reserve_seconds(self) -> int:
        """What must fit into the response timeout beside the longest silence of the body."""
        return (
            self.lakefs_merge_timeout_seconds
            + self.conductor_completion_timeout_seconds
            + self.worker_shutdown_grace_seconds
            + self.heartbeat_interval_seconds
        )


@dataclass(frozen=True)
class TaskControls:
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: TimeoutPolicy = field(default_factory=TimeoutPolicy)
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    publish_budget: PublishBudget | None = None

    def __post_init__(self) -> None:
        place = calling_place()
        wanted = {"retry": RetryPolicy, "timeout": TimeoutPolicy, "limits": ExecutionLimits}
        for name, kind in wanted.items():
            if not isinstance(getattr(self, name), kind):
                raise place.refuse(f"TaskControls.{name} is a {kind.__name__}")
        if not isinstance(self.publish_budget, PublishBudget | None):
            raise place.refuse("TaskControls.publish_budget is a PublishBudget")


def _whole(declared: object, names: Iterable[str], place: Place, *, least: int = 0) -> None:
    for name in names:
        value = getattr(declared, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise place.refuse(
                f"{type(declared).__name__}.{name} is a whole number of at least {least}, "
                f"not {value!r}"
            )


def _one_of(value: object, choices: type[enum.StrEnum], what: str, place: Place) -> None:
    if value not in list(choices):
        known = ", ".join(choice.value for choice in choices)
        raise place.refuse(f"{what} is one of {known}, not {value!r}")


# Numbers that a task's body tells: kept with the attempt's log, under `app.` names.

# They would make one series per attempt of what is one series per task.
_RESERVED = frozenset({"task_id", "workflow_instance_id", "execution_id", "worker_id", "task_name"})

Emit = Callable[[Mapping[str, Any]], None]
# Labels are given as one mapping, as keywords, or both.
Labels = Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Which of the runtime's own numbers are kept beside those of the body."""

    attempts: bool = True
    workspace_io: bool = True
    worker_capacity: bool = True


class MetricRecorder:
    """What a body gets as `metrics`; each call is one line of the attempt's log."""

    def __init__(self, emit: Emit, labels: Mapping[str, str]) -> None:
        self._emit = emit
        self._labels = dict(labels)

    def histogram(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """One observation of many."""
        self._record("histogram", name, value, {**(labels or {}), **more})

    def gauge(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """What the number is now."""
        self._record("gauge", name, value, {**(labels or {}), **more})

    @contextmanager
    def timer(self, name: str, labels: Labels = None, **more: str) -> Iterator[None]:
        """How many seconds the block took, also where it raised."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.histogram(name, time.perf_counter() - began, labels, **more)

    def _record(self, kind: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Invalid(f"metric {name!r} is a number, not {value!r}.")
        kept = {key: str(text) for key, text in labels.items() if key not in _RESERVED}
        self._emit(
            {
                "metric": f"app.{name}",
                "kind": kind,
                "value": value,
                "labels": {**kept, **self._labels},
            }
        )


# Tables that a task reads and writes beside its workspace.


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Which tables the task's Spark session may read, and which it writes, by dataset name.

    They lie on the branch that the task's input names, and what was written is published in the
    same publication as the workspace.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    # Spark settings of this task's session.
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = calling_place()
        object.__setattr__(self, "inputs", _names(self.inputs, "inputs", place))
        object.__setattr__(self, "outputs", _names(self.outputs, "outputs", place))
        if not self.inputs and not self.outputs:
            raise place.refuse("TableSpec names no table")
        both = sorted(set(self.inputs) & set(self.outputs))
        if both:
            raise place.refuse(f"TableSpec has {both[0]!r} as input and as output")

    @property
    def read(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.inputs)

    @property
    def written(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.outputs)


def _names(given: object, what: str, place: Place) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, tuple | list):
        raise place.refuse(f"TableSpec.{what} is a list of dataset names, not {given!r}")
    for name in given:
        try:
            parse_dataset_name(name)
        except (InvalidName, TypeError, AttributeError) as error:
            raise place.refuse(f"TableSpec.{what}: {error}") from error
    if len(set(given)) != len(given):
        raise place.refuse(f"TableSpec.{what} names a table twice")
    return tuple(given)


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
