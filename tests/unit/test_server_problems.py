"""Every error has an HTTP status, and the table of families is complete."""

from __future__ import annotations

import pytest

from headgate.errors import HeadgateError, Mismatch, TokenRefused, ViewConflict, kinds
from headgate.errors.families import Conflict, Denied, Exists, Invalid, NotFound, Unavailable
from headgate.server.api.conventions import MEANINGS, STATUSES, problem, status_of


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_documented_status(kind: type[HeadgateError]) -> None:
    error = kind.__new__(kind)
    status = status_of(error)
    assert status in MEANINGS or kind is HeadgateError


@pytest.mark.parametrize(
    ("family", "status"),
    [
        (Invalid, 400),
        (TokenRefused, 401),
        (Denied, 403),
        (NotFound, 404),
        (Conflict, 409),
        (Exists, 409),
        (Unavailable, 503),
    ],
)
def test_each_family_has_the_status_that_clients_act_on(
    family: type[HeadgateError], status: int
) -> None:
    assert STATUSES[family] == status


def test_conflict_has_the_manifest_conflict_and_all_of_them() -> None:
    found = [
        Mismatch(dataset="a.b", branch="m", field="view", expected="t-1", actual=f"t-{n}")
        for n in (2, 3)
    ]
    reply = problem(ViewConflict(found))
    assert reply.status_code == 409
    text = bytes(reply.body).decode()
    assert '"manifest_conflict":{"table_key":"a.b@m","expected":"t-1","actual":"t-2"}' in text
    assert text.count('"field":"view"') == 2
