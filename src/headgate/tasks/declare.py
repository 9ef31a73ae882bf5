"""Declaration of tasks: `@task` and its arguments, validated where they are written."""

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
from headgate.transforms.source_location import SourceLocation, calling_location, location_of

# Fails if it returns False or a string, which is the reason, or if it raises.
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
    """A check on the paths of a workspace."""

    kind: CheckKind
    path: str
    min_count: int = 1
    max_count: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.path!r})"


Check = PathCheck | CheckFunction


def require_file(path: str | PurePath) -> PathCheck:
    """Require a file at this path of the workspace."""
    return PathCheck(kind=CheckKind.FILE, path=_relative(path, calling_location()))


def require_dir(path: str | PurePath) -> PathCheck:
    """Require a directory at this path of the workspace."""
    return PathCheck(kind=CheckKind.DIRECTORY, path=_relative(path, calling_location()))


def require_glob(
    pattern: str | PurePath, min_count: int = 1, max_count: int | None = None
) -> PathCheck:
    """Require `min_count` to `max_count` files that match the pattern.

    ::

        WorkspaceSpec(pre=[require_glob("scans/*.tif", min_count=1)])
    """
    location = calling_location()
    for name, count in (("min_count", min_count), ("max_count", max_count)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise location.error(f"{name} of require_glob must be an integer, not {count!r}")
    if min_count < 0 or (max_count is not None and max_count < min_count):
        raise location.error(
            f"require_glob needs 0 <= min_count <= max_count, not {min_count} and {max_count}"
        )
    return PathCheck(
        kind=CheckKind.GLOB,
        path=_relative(pattern, location),
        min_count=min_count,
        max_count=max_count,
    )


def forbid_glob(pattern: str | PurePath) -> PathCheck:
    """Require that no file matches the pattern."""
    return PathCheck(kind=CheckKind.NO_GLOB, path=_relative(pattern, calling_location()))


def _checks(checks: object, name: str, location: SourceLocation) -> tuple[Check, ...]:
    if isinstance(checks, str) or not isinstance(checks, Sequence):
        raise location.error(f"{name} must be a list of checks, not {checks!r}")
    for check in checks:
        if not isinstance(check, PathCheck) and not callable(check):
            raise location.error(f"{name} has {check!r}, which is neither a check nor a function")
    return tuple(checks)


def check_workspace(checks: Sequence[Check], workspace: Path, phase: Phase) -> None:
    """Raise for the first check that the workspace fails."""
    for check in checks:
        if isinstance(check, PathCheck):
            name, reason = str(check), _path_failure(check, workspace)
        else:
            name = getattr(check, "__name__", repr(check))
            reason = _function_failure(check, workspace)
        if reason is not None:
            raise WorkspaceCheckFailed(phase=phase, check=name, reason=reason)


def _path_failure(check: PathCheck, workspace: Path) -> str | None:
    if check.kind is CheckKind.FILE:
        return None if _is_file(workspace / check.path) else f"no file {check.path!r}"
    if check.kind is CheckKind.DIRECTORY:
        found = workspace / check.path
        exists = found.is_dir() and not found.is_symlink()
        return None if exists else f"no directory {check.path!r}"
    matching = (path for path in workspace.glob(check.path) if _is_file(path))
    if check.kind is CheckKind.NO_GLOB:
        first = next(matching, None)
        return None if first is None else f"{str(first.relative_to(workspace))!r} matches"
    enough = check.min_count if check.max_count is None else check.max_count + 1
    count = sum(1 for _ in itertools.islice(matching, enough))
    if count < check.min_count:
        return f"{count} files match; at least {check.min_count} are required"
    if check.max_count is not None and count > check.max_count:
        return f"more than {check.max_count} files match; at most {check.max_count} are allowed"
    return None


def _function_failure(check: CheckFunction, workspace: Path) -> str | None:
    try:
        result = check(workspace)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f": {error}" if str(error) else ""
        return f"it raised {type(error).__name__}{message} ({last.filename}:{last.lineno})"
    if isinstance(result, str):
        return result
    return "it returned False" if result is False else None


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _relative(path: str | PurePath, location: SourceLocation) -> str:
    """Return a relative path with forward slashes; raise for any other path."""
    if isinstance(path, PurePath):
        drive, text = path.drive, path.as_posix()
    elif isinstance(path, str):
        drive, text = "", path
    else:
        raise location.error(f"the path of a check must be a string or a path, not {path!r}")
    parts = text.split("/")
    if drive or text.startswith("/") or "\\" in text or (len(parts[0]) == 2 and parts[0][1] == ":"):
        raise location.error(f"{text!r} is not in the workspace: give a relative path with slashes")
    if any(part in {"", ".", ".."} for part in parts):
        raise location.error(f"{text!r} has an empty, '.' or '..' part")
    return text


# Controls: retries, timeouts, limits and the time for publishing.

_MAX_RETRIES = 10


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
    """Number of retries after a failed attempt, and the delay before each.

    :param count: retries after the first attempt, at most 10.
    :param logic: `"FIXED"`, `"LINEAR_BACKOFF"` or `"EXPONENTIAL_BACKOFF"`.
    :param max_delay_seconds: upper limit of the delay; 0 is no limit.
    :param jitter_ms: greatest random addition to a delay.
    """

    count: int = 3
    logic: str = RetryLogic.FIXED
    delay_seconds: int = 60
    max_delay_seconds: int = 0
    jitter_ms: int = 0

    def __post_init__(self) -> None:
        location = calling_location()
        _check_integers(
            self, ("count", "delay_seconds", "max_delay_seconds", "jitter_ms"), location
        )
        if self.count > _MAX_RETRIES:
            raise location.error(
                f"RetryPolicy.count must be at most {_MAX_RETRIES}, not {self.count}"
            )
        _check_choice(self.logic, RetryLogic, "RetryPolicy.logic", location)

    def delay_before(self, retry: int) -> float:
        """Return the seconds before a retry, counted from 1, without the jitter."""
        factor: int = {
            RetryLogic.FIXED: 1,
            RetryLogic.LINEAR_BACKOFF: retry,
            RetryLogic.EXPONENTIAL_BACKOFF: 2 ** (retry - 1),
        }[RetryLogic(self.logic)]
        seconds = self.delay_seconds * factor
        return min(seconds, self.max_delay_seconds) if self.max_delay_seconds else seconds


@dataclass(frozen=True)
class TimeoutPolicy:
    """Timeouts of a task; 0 is no timeout.

    :param policy: `"TIME_OUT_WF"` fails the workflow, `"RETRY"` starts another attempt,
        `"ALERT_ONLY"` lets the attempt continue.
    :param seconds: longest duration of one attempt.
    :param response_seconds: longest time between two heartbeats.
    :param poll_seconds: longest time in the queue before a worker polls the task.
    :param total_seconds: longest duration of all attempts together.
    """

    policy: str = OnTimeout.TIME_OUT_WF
    seconds: int = 0
    response_seconds: int = 600
    poll_seconds: int = 0
    total_seconds: int = 0

    def __post_init__(self) -> None:
        location = calling_location()
        _check_integers(
            self, ("seconds", "response_seconds", "poll_seconds", "total_seconds"), location
        )
        _check_choice(self.policy, OnTimeout, "TimeoutPolicy.policy", location)
        if self.response_seconds < 1:
            raise location.error("TimeoutPolicy.response_seconds must be at least 1")


@dataclass(frozen=True)
class ExecutionLimits:
    """Limits on concurrent attempts, and on attempts that start within a period."""

    concurrent_exec_limit: int | None = None
    rate_limit_frequency_in_seconds: int | None = None
    rate_limit_per_frequency: int | None = None

    def __post_init__(self) -> None:
        location = calling_location()
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        _check_integers(self, given, location, least=1)
        if (self.rate_limit_frequency_in_seconds is None) != (
            self.rate_limit_per_frequency is None
        ):
            raise location.error(
                "ExecutionLimits needs both rate_limit_frequency_in_seconds and "
                "rate_limit_per_frequency, or neither"
            )


@dataclass(frozen=True)
class PublishBudget:
    """Time for publishing and reporting, reserved within the response timeout."""

    observed_merge_p99_seconds: int
    safety_margin_seconds: int
    lakefs_merge_timeout_seconds: int
    conductor_completion_timeout_seconds: int
    worker_shutdown_grace_seconds: int
    heartbeat_interval_seconds: int

    def __post_init__(self) -> None:
        location = calling_location()
        _check_integers(self, ("observed_merge_p99_seconds", "safety_margin_seconds"), location)
        timed = (
            "lakefs_merge_timeout_seconds",
            "conductor_completion_timeout_seconds",
            "worker_shutdown_grace_seconds",
            "heartbeat_interval_seconds",
        )
        _check_integers(self, timed, location, least=1)
        needed = self.observed_merge_p99_seconds + self.safety_margin_seconds
        if self.lakefs_merge_timeout_seconds < needed:
            raise location.error(
                f"PublishBudget.lakefs_merge_timeout_seconds is {self.lakefs_merge_timeout_seconds}"
                f", less than the observed p99 plus the safety margin ({needed})"
            )

    @property
    def reserve_seconds(self) -> int:
        """Seconds of the response timeout that are reserved."""
        return (
            self.lakefs_merge_timeout_seconds
            + self.conductor_completion_timeout_seconds
            + self.worker_shutdown_grace_seconds
            + self.heartbeat_interval_seconds
        )


@dataclass(frozen=True)
class TaskControls:
    """Retries, timeouts, limits and publish budget of a task."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: TimeoutPolicy = field(default_factory=TimeoutPolicy)
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    publish_budget: PublishBudget | None = None

    def __post_init__(self) -> None:
        location = calling_location()
        kinds = {"retry": RetryPolicy, "timeout": TimeoutPolicy, "limits": ExecutionLimits}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise location.error(f"TaskControls.{name} must be a {kind.__name__}")
        if not isinstance(self.publish_budget, PublishBudget | None):
            raise location.error("TaskControls.publish_budget must be a PublishBudget")


def _check_integers(
    declared: object, names: Iterable[str], location: SourceLocation, *, least: int = 0
) -> None:
    for name in names:
        value = getattr(declared, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise location.error(
                f"{type(declared).__name__}.{name} must be an integer of at least {least}, "
                f"not {value!r}"
            )


def _check_choice(
    value: object, choices: type[enum.StrEnum], name: str, location: SourceLocation
) -> None:
    if value not in list(choices):
        known = ", ".join(choice.value for choice in choices)
        raise location.error(f"{name} must be one of {known}, not {value!r}")


# Metrics that a task's function records in the attempt's log, with the prefix `app.`.

# Labels with these names would create one time series per attempt instead of one per task.
_RESERVED = frozenset({"task_id", "workflow_instance_id", "execution_id", "worker_id", "task_name"})

Emit = Callable[[Mapping[str, Any]], None]
Labels = Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Metrics of the runtime that are recorded with those of the function."""

    attempts: bool = True
    workspace_io: bool = True
    worker_capacity: bool = True


class MetricRecorder:
    """Records metrics; passed to the function as `metrics`.

    Each call writes one line to the attempt's log. Labels are a mapping, keywords, or both.
    """

    def __init__(self, emit: Emit, labels: Mapping[str, str]) -> None:
        self._emit = emit
        self._labels = dict(labels)

    def histogram(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """Record one observation of a distribution."""
        self._record("histogram", name, value, {**(labels or {}), **more})

    def gauge(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """Record the current value."""
        self._record("gauge", name, value, {**(labels or {}), **more})

    @contextmanager
    def timer(self, name: str, labels: Labels = None, **more: str) -> Iterator[None]:
        """Record the duration of the block in seconds, also if it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.histogram(name, time.perf_counter() - began, labels, **more)

    def _record(self, kind: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Invalid(f"metric {name!r} must be a number, not {value!r}.")
        kept = {key: str(text) for key, text in labels.items() if key not in _RESERVED}
        self._emit(
            {
                "metric": f"app.{name}",
                "kind": kind,
                "value": value,
                "labels": {**kept, **self._labels},
            }
        )


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Tables that a task reads and writes through its Spark session.

    The tables are on the branch of the task's workspace. Written tables and the workspace are
    published in one publication.

    :param inputs: names of datasets to read.
    :param outputs: names of datasets to write.
    :param conf: Spark settings of the task's session.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        location = calling_location()
        object.__setattr__(self, "inputs", _names(self.inputs, "inputs", location))
        object.__setattr__(self, "outputs", _names(self.outputs, "outputs", location))
        if not self.inputs and not self.outputs:
            raise location.error("TableSpec needs at least one table")
        both = sorted(set(self.inputs) & set(self.outputs))
        if both:
            raise location.error(f"TableSpec has {both[0]!r} both as input and as output")

    @property
    def read(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.inputs)

    @property
    def written(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.outputs)


def _names(given: object, field: str, location: SourceLocation) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, tuple | list):
        raise location.error(f"TableSpec.{field} must be a list of dataset names, not {given!r}")
    for name in given:
        try:
            parse_dataset_name(name)
        except (InvalidName, TypeError, AttributeError) as error:
            raise location.error(f"TableSpec.{field}: {error}") from error
    if len(set(given)) != len(given):
        raise location.error(f"TableSpec.{field} has a table twice")
    return tuple(given)


DEFINITION = "__headgate_task__"
WORKSPACE, PARAMS, METRICS, SPARK = "workspace", "params", "metrics", "spark"
# Order of the parameters of a task's function.
_ORDER = (WORKSPACE, PARAMS, SPARK, METRICS)

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class WorkspaceSpec:
    """Workspace of a task: the files on which its function works.

    :param prefix: the directory of the repository to copy; `"/"` for all of it.
    :param pre: checks before the function is called; a failure is terminal.
    :param post: checks after the function returns; a failure prevents the publication.
    :param read_only: never publish changes of files.
    """

    prefix: str = "/"
    pre: Sequence[Check] = ()
    post: Sequence[Check] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        location = calling_location()
        if not isinstance(self.prefix, str) or not self.prefix:
            raise location.error(
                f"WorkspaceSpec.prefix must be '/' or a directory, not {self.prefix!r}"
            )
        if not isinstance(self.read_only, bool):
            raise location.error(f"WorkspaceSpec.read_only must be a bool, not {self.read_only!r}")
        object.__setattr__(self, "pre", _checks(self.pre, "WorkspaceSpec.pre", location))
        object.__setattr__(self, "post", _checks(self.post, "WorkspaceSpec.post", location))
        if self.directory:
            try:
                check_file_path(self.directory)
            except UnsafePath as error:
                raise location.error(f"WorkspaceSpec.prefix: {error.message}") from error

    @property
    def directory(self) -> str:
        """The prefix as a path in the repository; empty for the whole repository."""
        return self.prefix.strip("/")


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """A declared task with the models of its input and output."""

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
    location: SourceLocation = field(compare=False)


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
) -> Callable[[Function], Function]:
    """Declare a function as a task; the function stays callable in tests.

    The function has the parameters `workspace: Path` (with a workspace), `params`, `spark` (with
    tables) and `metrics: MetricRecorder` (with metrics), in this order. `params` and the return
    value are annotated with pydantic models.

    :param name: the name of the task at the orchestrator.
    :param workspace: the files on which the function works; None for a task without files.
    :param controls: retries, timeouts and limits.
    :param strict_params: reject unknown fields in `params`.
    :param strict_input: reject unknown keys next to `workspace` and `params`.
    :param tables: tables that the function reads and writes through Spark.

    ::

        @task("render", "team@example.org", workspace=WorkspaceSpec(pre=[require_dir("scans")]))
        def render(workspace: Path, params: Params) -> Result: ...
    """
    location = calling_location()
    if unknown:
        raise location.error(
            f"@task got unexpected arguments {', '.join(map(repr, sorted(unknown)))}"
        )
    _check_texts(name, owner_email, description, location)
    for option, given, kind in (
        ("workspace", workspace, WorkspaceSpec),
        ("metrics", metrics, MetricSpec),
        ("controls", controls, TaskControls),
        ("tables", tables, TableSpec),
    ):
        if given is not None and not isinstance(given, kind):
            raise location.error(f"{option} must be a {kind.__name__}, not {given!r}")
    for option, flag in (("strict_params", strict_params), ("strict_input", strict_input)):
        if not isinstance(flag, bool):
            raise location.error(f"{option} must be a boolean, not {flag!r}")
    if controls is not None and controls.publish_budget is not None and workspace is None:
        raise location.error("publish_budget requires a workspace")
    if tables is not None and workspace is None:
        raise location.error("tables require a workspace, whose branch they are on")

    def decorate(function: Function) -> Function:
        used = {
            WORKSPACE: workspace is not None,
            PARAMS: True,
            SPARK: tables is not None,
            METRICS: metrics is not None,
        }
        params_model, result_model = _check_signature(function, used)
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
            location=location_of(function),
        )
        setattr(function, DEFINITION, definition)
        return function

    return decorate


def _check_texts(
    name: object, owner_email: object, description: object, location: SourceLocation
) -> None:
    if not isinstance(name, str) or not name.strip() or set(name) & {"/", "\\"}:
        raise location.error(f"the name of a task must be text without slashes, not {name!r}")
    if not isinstance(owner_email, str) or not owner_email.strip():
        raise location.error(f"owner_email of a task must be non-empty text, not {owner_email!r}")
    if description is not None and not isinstance(description, str):
        raise location.error(f"the description of a task must be text, not {description!r}")


def _check_signature(
    function: Callable[..., Any], used: Mapping[str, bool]
) -> tuple[type[BaseModel], type[BaseModel]]:
    """Check the parameters of a function; return its params and result models."""
    if not isinstance(function, FunctionType):
        raise calling_location().error(f"@task decorates a function, not {function!r}")
    location = location_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise location.error(
            f"{function.__name__} must be a plain function, neither async nor a generator"
        )
    expected = [name for name in _ORDER if used[name]]
    parameters = inspect.signature(function).parameters
    if list(parameters) != expected:
        raise location.error(
            f"{function.__name__} has the parameters ({', '.join(parameters)}); its declaration "
            f"requires ({', '.join(expected)})"
        )
    for parameter in parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise location.error(
                f"{parameter.name!r} of {function.__name__} must be positional-or-keyword"
            )
        if parameter.default is not parameter.empty:
            raise location.error(
                f"{parameter.name!r} of {function.__name__} must not have a default"
            )
    return _check_hints(function, expected, location)


def _check_hints(
    function: FunctionType, expected: Sequence[str], location: SourceLocation
) -> tuple[type[BaseModel], type[BaseModel]]:
    # The annotation of `spark` is not resolved, so that a module need not import Spark.
    annotations = {name: hint for name, hint in function.__annotations__.items() if name != SPARK}
    try:
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__=annotations), globalns=function.__globals__
        )
    except Exception as error:
        raise location.error(
            f"the annotations of {function.__name__} cannot be resolved: {error}"
        ) from error
    exact = {WORKSPACE: Path, METRICS: MetricRecorder}
    for name in expected:
        if name in exact and hints.get(name) is not exact[name]:
            raise location.error(
                f"{name!r} of {function.__name__} must be annotated as {exact[name].__name__}"
            )
    return (
        _model(hints.get(PARAMS), f"'params' of {function.__name__}", location),
        _model(hints.get("return"), f"the return value of {function.__name__}", location),
    )


def _model(hint: object, subject: str, location: SourceLocation) -> type[BaseModel]:
    if not isinstance(hint, type) or not issubclass(hint, BaseModel):
        raise location.error(f"{subject} must be annotated with a pydantic model, not {hint!r}")
    if issubclass(hint, RootModel):
        raise location.error(f"{subject} must be an object with fields, not a RootModel")
    return hint
