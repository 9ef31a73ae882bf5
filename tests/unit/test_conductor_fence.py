"""The attempt fence of Conductor: each field that may be stale, in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.conductor import IN_PROGRESS, Dispatch, check_same
from headgate.errors import StaleAttempt

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
