"""Iceberg clients that are configured with a credential get their token from the server."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import OAuthError

from headgate.model.access import Role
from tests.support.api import Api

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


def _issue(
    api: Api, form: dict[str, str], *, auth: tuple[str, str] | None = None
) -> httpx.Response:
    url = f"{api.url}/iceberg/v1/oauth/tokens"
    return httpx.post(url, data=form, auth=auth, verify=False, timeout=60)


def _form(id: str, secret: str) -> dict[str, str]:
    grant = {"grant_type": "client_credentials", "scope": "catalog"}
    return {**grant, "client_id": id, "client_secret": secret}


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    return api.store.create_token(actor="ana", role=Role.WRITER)


@pytest.mark.parametrize("id", ["id", "actor"])
def test_credential_of_pyiceberg_reads_and_writes_with_the_rights_of_its_token(
    api: Api, made: dict[str, Any], id: str
) -> None:
    catalog = RestCatalog(
        "headgate",
        uri=f"{api.url}/iceberg",
        warehouse="master",
        credential=f"{made[id]}:{made['token']}",
        **{"oauth2-server-uri": f"{api.url}/iceberg/v1/oauth/tokens"},
    )
    catalog.create_namespace("db")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    catalog.create_table("db.t", rows.schema).append(rows)
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 2
    assert {one.actor for one in api.store.dataset("db.t").branch("master").history()} == {"ana"}


def test_access_token_is_revoked_with_the_token_of_its_credential(
    api: Api, made: dict[str, Any]
) -> None:
    reply = _issue(api, _form("ana", made["token"]))
    assert reply.headers["cache-control"] == "no-store"
    issued = reply.json()
    assert issued["token_type"] == "bearer"
    assert "expires_in" not in issued
    assert api.bearing(issued["access_token"]).http.get("/datasets").status_code == 200
    api.store.revoke_token(made["id"])
    assert api.bearing(issued["access_token"]).http.get("/datasets").status_code == 401


def test_time_to_expiry_is_announced_and_a_token_is_exchanged_until_its_end(api: Api) -> None:
    made = api.store.create_token(actor="bo", role=Role.READER, lifetime_seconds=3600)
    form = {
        "grant_type": _EXCHANGE,
        "subject_token": made["token"],
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    issued = _issue(api, form).json()
    assert 3000 < issued["expires_in"] <= 3600
    assert issued["issued_token_type"] == form["subject_token_type"]
    api.store.revoke_token(made["id"])
    assert _issue(api, form).status_code == 401


def test_basic_header_is_a_credential_too(api: Api, made: dict[str, Any]) -> None:
    form = {"grant_type": "client_credentials"}
    reply = _issue(api, form, auth=(made["id"], made["token"]))
    assert reply.json()["access_token"] == made["token"]
    assert _issue(api, form, auth=("other", made["token"])).status_code == 401


@pytest.mark.parametrize(
    ("form", "status", "code", "text"),
    [
        (_form("ana", "hg_wrong"), 401, "invalid_client", "not a valid token"),
        (_form("ana", ""), 400, "invalid_request", "no client_secret"),
        ({}, 400, "unsupported_grant_type", "client_credentials"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type", "'password'"),
        ({"grant_type": _EXCHANGE}, 400, "invalid_request", "no subject_token"),
        ({"grant_type": _EXCHANGE, "subject_token": "x"}, 401, "invalid_client", "not a valid"),
    ],
)
def test_wrong_credential_is_refused_with_a_code_of_oauth(
    api: Api, form: dict[str, str], status: int, code: str, text: str
) -> None:
    reply = _issue(api, form)
    assert (reply.status_code, reply.json()["error"]) == (status, code)
    assert text in reply.json()["error_description"]


def test_token_of_another_client_id_is_refused(api: Api, made: dict[str, Any]) -> None:
    reply = _issue(api, _form("bo", made["token"]))
    assert (reply.status_code, reply.json()["error"]) == (401, "invalid_client")
    with pytest.raises(OAuthError, match="neither the id nor the actor"):
        RestCatalog(
            "headgate",
            uri=f"{api.url}/iceberg",
            warehouse="master",
            credential=f"bo:{made['token']}",
            **{"oauth2-server-uri": f"{api.url}/iceberg/v1/oauth/tokens"},
        )


def test_body_of_a_stranger_is_limited(api: Api) -> None:
    reply = _issue(api, _form("ana", "x" * 20_000))
    assert reply.status_code == 413
