"""Response to an Iceberg client for every error."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from headgate import errors
from headgate.iceberg.service import ERROR_TABLE, error_reply, status_of


def leaves(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from leaves(child)


def make(kind: type[errors.HeadgateError]) -> errors.HeadgateError:
    error = kind.__new__(kind)
    errors.HeadgateError.__init__(error, "it happened", fact=1)
    return error


FAMILIES = {
    errors.Invalid: {400},
    errors.NotFound: {404},
    errors.Exists: {409},
    errors.Conflict: {403, 409},
    errors.Denied: {403},
    errors.Unavailable: {500, 503},
    errors.WorkFailed: {500},
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_error_of_a_family_has_one_of_its_statuses(
    family: type[errors.HeadgateError],
) -> None:
    for kind in leaves(family):
        status, name = status_of(make(kind))
        assert status in FAMILIES[family], kind
        assert name.endswith(("Exception", "Error"))


def test_every_family_is_in_the_table() -> None:
    assert set(FAMILIES) == set(errors.HeadgateError.__subclasses__())
    assert set(FAMILIES) <= set(ERROR_TABLE)


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        (errors.AttemptSuperseded, 403, "ForbiddenException"),
        (errors.TransactionNotOpen, 403, "ForbiddenException"),
        (errors.ViewConflict, 409, "CommitFailedException"),
        (errors.RequirementFailed, 409, "CommitFailedException"),
        (errors.StaleReplacement, 409, "CommitFailedException"),
        (errors.TableExists, 409, "AlreadyExistsException"),
        (errors.NamespaceNotEmpty, 409, "NamespaceNotEmptyException"),
        (errors.TableNotFound, 404, "NoSuchTableException"),
        (errors.NamespaceNotFound, 404, "NoSuchNamespaceException"),
        (errors.CatalogUnavailable, 503, "ServiceUnavailableException"),
        (errors.OutcomeUnknown, 500, "CommitStateUnknownException"),
        (errors.CommitInterrupted, 500, "CommitStateUnknownException"),
    ],
)
def test_error_that_spark_must_tell_apart_has_its_own_answer(
    kind: type[errors.HeadgateError], status: int, name: str
) -> None:
    assert status_of(make(kind)) == (status, name)


def test_error_body_has_the_protocols_shape_and_the_stable_code() -> None:
    reply = error_reply(errors.DatasetNotFound(dataset="a.b"))
    body = orjson.loads(reply.body)["error"]
    assert (body["type"], body["code"]) == ("NoSuchTableException", 404)
    assert body["message"].endswith("[dataset_not_found]")
    assert body["headgate"]["dataset"] == "a.b"


def test_denied_without_a_token_is_401() -> None:
    assert error_reply(errors.Denied("no"), authenticated=False).status == 401
    assert error_reply(errors.Denied("no")).status == 403
