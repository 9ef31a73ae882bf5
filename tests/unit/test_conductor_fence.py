"""The fences of Conductor: each field of a dispatch that may be stale, and workflows that ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.conductor import IN_PROGRESS, ConductorClient, Dispatch, check_same
from headgate.errors import OrchestratorUnavailable, StaleAttempt
from headgate.iceberg.app import LoopbackEndpoint

_POLLED = Dispatch(
    task_id="t1",
    workflow_id="w1",
    task_type="render",
    reference="only",
    status=IN_PROGRESS,
    retry_count=0,
    iteration=0,
    seq=1,
    response_seconds=60,
    data={},
)


def test_fence_of_the_very_dispatch_says_nothing() -> None:
    check_same(_POLLED, replace(_POLLED, seq=2, output={"seen": True}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "TIMED_OUT"}, "status"),
        ({"status": "COMPLETED"}, "status"),
        ({"workflow_id": "w2"}, "workflow"),
        ({"task_id": "t2"}, "task id"),
        ({"retry_count": 1}, "retry count"),
    ],
)
def test_fence_with_one_stale_field_refuses_by_its_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(StaleAttempt, match=said):
        check_same(_POLLED, replace(_POLLED, **changed))


def test_fence_of_a_task_that_the_server_forgot_refuses() -> None:
    with pytest.raises(StaleAttempt, match="gone"):
        check_same(_POLLED, None)


@pytest.fixture(scope="module")
def conductor() -> Iterator[ConductorClient]:
    """A client of a server whose workflows have the state that their id names."""

    async def workflow(request: Request) -> Response:
        state = request.path_params["id"]
        if state in ("GONE", "BROKEN"):
            return JSONResponse({"message": state}, 404 if state == "GONE" else 500)
        return JSONResponse({"workflowId": state, "status": state})

    endpoint = LoopbackEndpoint(Starlette(routes=[Route("/api/workflow/{id}", workflow)]))
    try:
        yield ConductorClient(endpoint.start())
    finally:
        endpoint.stop()


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        *((state, True) for state in ("FAILED", "TIMED_OUT", "TERMINATED")),
        *((state, False) for state in ("RUNNING", "PAUSED", "COMPLETED", "GONE")),
    ],
)
def test_has_ended_is_true_only_of_a_workflow_that_ended_without_success(
    conductor: ConductorClient, state: str, ended: bool
) -> None:
    assert conductor.has_ended(f"conductor:{state}:only:0") is ended


@pytest.mark.parametrize("key", ["nightly", "airflow:FAILED:only:0", "FAILED"])
def test_has_ended_of_a_key_of_another_orchestrator_is_false(
    conductor: ConductorClient, key: str
) -> None:
    assert conductor.has_ended(key) is False


def test_has_ended_without_an_answer_is_an_error(conductor: ConductorClient) -> None:
    with pytest.raises(OrchestratorUnavailable):
        conductor.has_ended("conductor:BROKEN:only:0")
