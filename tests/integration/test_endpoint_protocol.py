"""Access and namespaces, request by request."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headgate.iceberg.app import ROUTES
from headgate.model.access import Role
from tests.support.api import Api
from tests.support.iceberg import (
    TABLES,
    Front,
    RestClient,
    Served,
    create,
    error,
    load,
    send,
)
from tests.support.metadata import commit, two_columns
from tests.support.strangers import fill


def test_config_gives_each_client_a_prefix_and_lists_what_it_can_do(served: Served) -> None:
    with served.client() as one, served.client() as other:
        assert one.prefix.startswith("c-bWFzdGVy.")
        assert one.prefix != other.prefix
        assert one.config["idempotency-key-lifetime"] == "PT24H"
        assert "POST /v1/{prefix}/transactions/commit" in one.config["endpoints"]
        assert "POST /v1/{prefix}/namespaces/{namespace}/views" in one.config["endpoints"]
        assert "POST /v1/{prefix}/namespaces/{namespace}/register" in one.config["endpoints"]
        assert not any("register-view" in endpoint for endpoint in one.config["endpoints"])


def test_server_that_reads_no_files_for_clients_neither_advertises_nor_serves_registration(
    served: Served, front: Front
) -> None:
    api = Api(served.store, front)
    token = api.token("ana", Role.ADMIN)
    with RestClient(f"{api.url}/iceberg", "master", token=token) as client:
        client.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        outside = create(client)["metadata-location"]
        assert not any("register" in endpoint for endpoint in client.config["endpoints"])
        body = {"name": "taken_in", "metadata-location": outside}
        response = client.call("POST", "namespaces/db/register", body)
        assert error(response) == (403, "ForbiddenException")
        assert "headgate dataset register" in response.json()["error"]["message"]
    api.close()


@pytest.mark.parametrize("warehouse", ["", "a>a", "../x"])
def test_config_for_no_context_is_400(served: Served, warehouse: str) -> None:
    with served.client() as client:
        response = client.http.get("/v1/config", params={"warehouse": warehouse})
        assert error(response) == (400, "BadRequestException")


@pytest.mark.parametrize(("who", "status"), [("nobody", 401), ("a stranger", 401), ("rea", 403)])
def test_write_without_the_right_token_is_refused(
    client: RestClient, served: Served, who: str, status: int
) -> None:
    shown = {"nobody": "", "a stranger": "Bearer x", "rea": f"Bearer {served.reader}"}[who]
    headers = {"authorization": shown}
    response = client.call("POST", "namespaces", {"namespace": ["x"]}, headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize("token", ["", "Bearer x"])
def test_body_of_a_stranger_is_not_waited_for(
    client: RestClient, served: Served, token: str
) -> None:
    sent = {"authorization": token, "content-length": "100"}
    for route in ROUTES:
        path = f"/v1/{client.prefix}/{fill(route.pattern)}"
        with closing(HTTPConnection(urlsplit(served.url).netloc, timeout=30)) as connection:
            connection.putrequest(route.method, path)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            assert connection.getresponse().status == 401, (route.method, path)


def test_reader_may_read(client: RestClient, served: Served) -> None:
    headers = {"authorization": f"Bearer {served.reader}"}
    assert client.call("GET", "namespaces", headers=headers).status_code == 200


def test_moment_is_read_as_it_was_and_cannot_be_written(client: RestClient, served: Served) -> None:
    create(client)
    send(client, *commit(1))
    with served.client("master@1") as past:
        assert "current-snapshot-id" not in load(past)["metadata"]
        assert error(send(past, *commit(2))) == (403, "ForbiddenException")


@pytest.mark.parametrize("path", ["views", f"{TABLES}/t/plan", "nonsense"])
def test_operation_that_is_not_there_is_404(client: RestClient, path: str) -> None:
    assert error(client.call("GET", path)) == (404, "NotFoundException")


def test_plus_in_a_path_is_a_space_as_java_clients_write_it(client: RestClient) -> None:
    client.call("POST", "namespaces", {"namespace": ["d b"]}).raise_for_status()
    for name in ("a b", "a+b"):
        body = {"name": name, "schema": two_columns()}
        client.call("POST", "namespaces/d+b/tables", body).raise_for_status()
    for path in ("d+b/tables/a+b", "d%20b/tables/a%20b", "d+b/tables/a%2Bb"):
        assert client.call("HEAD", f"namespaces/{path}").status_code == 204
    assert client.call("DELETE", "namespaces/d+b/tables/a+b").status_code == 204
    listed = client.call("GET", "namespaces/d+b/tables").json()["identifiers"]
    assert [one["name"] for one in listed] == ["a+b"]


def test_prefix_that_was_never_given_out_is_400(client: RestClient) -> None:
    assert error(client.http.get("/v1/main/namespaces")) == (400, "BadRequestException")


def test_namespaces_nest_and_list_one_level_at_a_time(client: RestClient) -> None:
    client.call("POST", "namespaces", {"namespace": ["a", "b", "c"]})
    assert client.call("GET", "namespaces").json()["namespaces"] == [["a"], ["db"]]
    below = client.call("GET", "namespaces?parent=a%1Fb").json()
    assert below["namespaces"] == [["a", "b", "c"]]
    assert client.call("HEAD", "namespaces/a%1Fb").status_code == 204
    assert error(client.call("GET", "namespaces?parent=x")) == (404, "NoSuchNamespaceException")


def test_namespaces_come_in_pages_when_asked(client: RestClient) -> None:
    for name in ("a", "b", "c"):
        client.call("POST", "namespaces", {"namespace": [name]})
    first = client.call("GET", "namespaces?pageToken=&pageSize=3").json()
    assert first["namespaces"] == [["a"], ["b"], ["c"]]
    rest = client.call("GET", f"namespaces?pageToken={first['next-page-token']}").json()
    assert (rest["namespaces"], rest["next-page-token"]) == ([["db"]], None)


@pytest.mark.parametrize(
    "query", ["pageToken=&pageSize=0", "pageToken=&pageSize=x", "pageToken=%%"]
)
def test_page_that_cannot_be_is_400(client: RestClient, query: str) -> None:
    assert client.call("GET", f"namespaces?{query}").status_code == 400


def test_namespace_properties_are_set_removed_and_reported(client: RestClient) -> None:
    change = {"removals": ["z"], "updates": {"owner": "ana"}}
    answer = client.call("POST", "namespaces/db/properties", change).json()
    assert answer == {"updated": ["owner"], "removed": [], "missing": ["z"]}
    assert client.call("GET", "namespaces/db").json()["properties"] == {"owner": "ana"}
    both = {"removals": ["a"], "updates": {"a": "1"}}
    response = client.call("POST", "namespaces/db/properties", both)
    assert error(response) == (422, "UnprocessableEntityException")


def test_namespace_twice_is_409_and_with_a_table_cannot_be_dropped(client: RestClient) -> None:
    again = client.call("POST", "namespaces", {"namespace": ["db"]})
    assert error(again) == (409, "AlreadyExistsException")
    create(client)
    dropped = client.call("DELETE", "namespaces/db")
    assert error(dropped) == (409, "NamespaceNotEmptyException")


def test_namespace_above_another_exists_and_goes_after_it(client: RestClient) -> None:
    client.call("POST", "namespaces", {"namespace": ["a", "b"]}).raise_for_status()
    above = client.call("POST", "namespaces", {"namespace": ["a"]})
    assert error(above) == (409, "AlreadyExistsException")
    assert error(client.call("DELETE", "namespaces/a")) == (409, "NamespaceNotEmptyException")
    for path in ("namespaces/a%1Fb", "namespaces/a"):
        assert client.call("DELETE", path).status_code == 204
    assert error(client.call("DELETE", "namespaces/a")) == (404, "NoSuchNamespaceException")
    change = client.call("POST", "namespaces/a/properties", {"updates": {"a": "b"}})
    assert error(change) == (404, "NoSuchNamespaceException")


def test_reply_is_not_held_back_for_an_acknowledgement(client: RestClient) -> None:
    seconds = [client.call("GET", "namespaces").elapsed.total_seconds() for _ in range(12)]
    assert min(seconds) < 0.03


@pytest.mark.parametrize(
    "namespace",
    [[], [""], ["a/"], ["a/../b"], ["."], ["a`b"], ["a\x1fb"], "db", [1], None],
)
def test_namespace_with_a_wrong_name_is_400(client: RestClient, namespace: Any) -> None:
    response = client.call("POST", "namespaces", {"namespace": namespace})
    assert error(response) == (400, "BadRequestException")


def test_endpoint_mounted_below_another_application_reads_the_raw_path(
    served: Served, front: Front
) -> None:
    front.app = Starlette(routes=[Mount("/iceberg", app=served.app)])
    with RestClient(f"{front.url}/iceberg", "master", token=served.token) as client:
        client.call("POST", "namespaces", {"namespace": ["a", "b c"]}).raise_for_status()
        assert client.call("HEAD", "namespaces/a%1Fb%20c").status_code == 204
        assert client.call("HEAD", "namespaces/a%2Fb").status_code == 404
        client.call("POST", "namespaces", {"namespace": ["a/b"]}).raise_for_status()
        assert client.call("HEAD", "namespaces/a%2Fb").status_code == 204
