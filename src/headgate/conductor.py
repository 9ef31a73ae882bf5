"""Client of a Conductor server: dispatches, leases, results and task definitions."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headgate.errors import Invalid, MissingExtra, NotFound, OrchestratorUnavailable, StaleAttempt

IN_PROGRESS = "IN_PROGRESS"
_ORCHESTRATOR = "conductor"
# States of a workflow whose publications no later task of it uses.
_ENDED = ("FAILED", "TIMED_OUT", "TERMINATED")
_NOT_FOUND, _TOO_MANY = 404, 429
_CLIENT_ERRORS = range(400, 500)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A task of a workflow at one point in time."""

    task_id: str
    workflow_id: str
    task_type: str
    reference: str
    status: str
    retry_count: int
    iteration: int
    seq: int
    response_seconds: int
    data: Any
    output: Any = None
    reason: str | None = None

    @property
    def key(self) -> str:
        """Identity of the work across retries, restarts and reruns."""
        return f"{_ORCHESTRATOR}:{self.workflow_id}:{self.reference}:{self.iteration}"

    @property
    def labels(self) -> dict[str, str]:
        return {
            "orchestrator": _ORCHESTRATOR,
            "workflow": self.workflow_id,
            "reference": self.reference,
            "seq": str(self.seq),
            "iteration": str(self.iteration),
            "task_id": self.task_id,
            "retry": str(self.retry_count),
        }


def check_same(polled: Dispatch, fresh: Dispatch | None) -> None:
    """Raise unless the server still has the dispatch that was polled in progress."""
    if fresh is None:
        raise StaleAttempt(task=polled.task_id, field="task", expected="there", actual="gone")
    for field, expected, actual in (
        ("status", IN_PROGRESS, fresh.status),
        ("workflow", polled.workflow_id, fresh.workflow_id),
        ("task id", polled.task_id, fresh.task_id),
        ("retry count", str(polled.retry_count), str(fresh.retry_count)),
    ):
        if expected != actual:
            raise StaleAttempt(task=polled.task_id, field=field, expected=expected, actual=actual)


class ConductorClient:
    """A Conductor server; credentials come from the variables of its Python client."""

    def __init__(self, url: str) -> None:
        try:
            # An optional extra, and slow.
            from conductor.client.configuration.configuration import Configuration  # noqa: PLC0415
            from conductor.client.http import api_client  # noqa: PLC0415
            from conductor.client.http.api import metadata_resource_api as metadata  # noqa: PLC0415
            from conductor.client.http.api import task_resource_api as tasks  # noqa: PLC0415
            from conductor.client.http.api import workflow_resource_api as flows  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra(feature="Conductor", extra="conductor") from error
        self.url = url.rstrip("/").removesuffix("/api")
        self._api = api_client.ApiClient(Configuration(server_api_url=f"{self.url}/api"))
        self._tasks = tasks.TaskResourceApi(self._api)
        self._metadata = metadata.MetadataResourceApi(self._api)
        self._workflows = flows.WorkflowResourceApi(self._api)

    def poll(self, task_type: str, *, worker: str, count: int, wait_ms: int) -> list[Dispatch]:
        """Poll at most `count` tasks; they are then in progress."""
        with self._errors():
            found = self._tasks.batch_poll(task_type, workerid=worker, count=count, timeout=wait_ms)
        return [_dispatch(task) for task in found or []]

    def find_task(self, task_id: str) -> Dispatch | None:
        """Return the current state of a task."""
        with suppress(NotFound), self._errors():
            return _dispatch(self._tasks.get_task(task_id))
        return None

    def check_current(self, polled: Dispatch) -> None:
        """Raise unless the server still waits for this dispatch (the attempt fence)."""
        check_same(polled, self.find_task(polled.task_id))

    def has_ended(self, key: str) -> bool:
        """Return True if the workflow of a dispatch key failed, timed out or was terminated.

        A completed, paused or running workflow, and one that the server does not have, is False.
        """
        orchestrator, workflow, *_ = f"{key}:".split(":")
        if orchestrator != _ORCHESTRATOR:
            return False
        with suppress(NotFound), self._errors():
            found = self._workflows.get_execution_status(workflow, include_tasks=False)
            return found.status in _ENDED
        return False

    def extend_lease(self, polled: Dispatch, *, worker: str) -> None:
        """Restart the response timeout."""
        self._update(polled, worker=worker, status=IN_PROGRESS, extend_lease=True)

    def report(
        self,
        polled: Dispatch,
        *,
        worker: str,
        status: str,
        output: Mapping[str, Any] | None,
        reason: str | None,
    ) -> None:
        self._update(
            polled,
            worker=worker,
            status=status,
            output_data=dict(output) if output is not None else None,
            reason_for_incompletion=reason,
        )

    def find_taskdef(self, name: str) -> dict[str, Any] | None:
        """Return a task definition with all of its fields."""
        with suppress(NotFound), self._errors():
            # The client's model drops fields that it does not define.
            found = self._api.call_api(
                "/metadata/taskdefs/{name}",
                "GET",
                {"name": name},
                [],
                {"Accept": "application/json"},
                response_type="object",
                auth_settings=[],
                _return_http_data_only=True,
            )
            return found if isinstance(found, dict) else None
        return None

    def register(self, taskdefs: Sequence[Mapping[str, Any]]) -> None:
        """Create task definitions."""
        with self._errors():
            self._metadata.register_task_def([dict(one) for one in taskdefs])

    def replace(self, taskdef: Mapping[str, Any]) -> None:
        """Replace a task definition."""
        with self._errors():
            self._metadata.update_task_def(dict(taskdef))

    def _update(self, polled: Dispatch, *, worker: str, **fields: Any) -> None:
        from conductor.client.http.models.task_result import TaskResult  # noqa: PLC0415

        result = TaskResult(
            workflow_instance_id=polled.workflow_id,
            task_id=polled.task_id,
            worker_id=worker,
            **fields,
        )
        with self._errors():
            self._tasks.update_task(result)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from conductor.client.http.rest import ApiException  # noqa: PLC0415

        try:
            yield
        except ApiException as error:
            if error.status == _NOT_FOUND:
                raise NotFound(f"not found at Conductor ({self.url}): {_text(error)}.") from error
            if error.status in _CLIENT_ERRORS and error.status != _TOO_MANY:
                raise Invalid(f"Conductor ({self.url}) rejected it: {_text(error)}.") from error
            raise OrchestratorUnavailable(url=self.url, reason=_text(error)) from error
        except OSError as error:
            raise OrchestratorUnavailable(url=self.url, reason=str(error)) from error


def connect(url: str | None) -> ConductorClient:
    """Return a client of the configured server."""
    if url is None:
        raise Invalid(
            "no Conductor is configured: set [conductor] url in headgate.toml, or "
            "HEADGATE_CONDUCTOR_URL."
        )
    return ConductorClient(url)


def _text(error: Any) -> str:
    """Return status and body of an error, without request headers."""
    body = error.body if isinstance(error.body, str) else ""
    return " ".join(f"{error.status or ''} {error.reason or ''} {body}".split())[:400]


def _dispatch(task: Any) -> Dispatch:
    return Dispatch(
        task_id=task.task_id,
        workflow_id=task.workflow_instance_id,
        task_type=task.task_def_name,
        reference=task.reference_task_name,
        status=task.status,
        retry_count=task.retry_count or 0,
        iteration=task.iteration or 0,
        seq=task.seq or 0,
        response_seconds=task.response_timeout_seconds or 0,
        data=task.input_data,
        output=task.output_data,
        reason=task.reason_for_incompletion,
    )


# Comparison of task definitions.

# Fields that the server fills in.
_SERVER_FIELDS = {"createTime", "updateTime", "createdBy", "updatedBy", "ownerApp"}


class DefinitionState(enum.StrEnum):
    NEW = "new"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Difference of a task definition to the server's.

    Each change is a field with the server's value and ours.
    """

    name: str
    state: DefinitionState
    changes: tuple[tuple[str, Any, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.name,
            "state": self.state.value,
            "changes": {field: {"from": old, "to": new} for field, old, new in self.changes},
        }


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Comparison:
    """Compare a definition to the server's; fields that only the server has are ignored."""
    name = str(ours["name"])
    if theirs is None:
        return Comparison(name=name, state=DefinitionState.NEW)
    changes = tuple(
        (field, theirs.get(field), value)
        for field, value in ours.items()
        if not _is_same(theirs.get(field), value)
    )
    state = DefinitionState.CHANGED if changes else DefinitionState.SAME
    return Comparison(name=name, state=state, changes=changes)


def _is_same(theirs: Any, ours: Any) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        compared = {key: value for key, value in ours.items() if key not in _SERVER_FIELDS}
        return all(_is_same(theirs.get(key), value) for key, value in compared.items())
    # The server omits numbers that are 0.
    return bool(theirs == ours or (theirs is None and ours == 0))
