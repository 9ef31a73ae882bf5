"""Files over HTTP: streamed up and down, edited in batches, never outside of their tree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from headgate.settings import ServerSettings
from tests.support.api import Api
from tests.support.iceberg import Front

LARGE = 5 * 1024 * 1024 + 17


def _chunks() -> Iterator[bytes]:
    """Yield a body without a content length."""
    for _ in range(LARGE // 65536):
        yield b"x" * 65536
    yield b"x" * (LARGE % 65536)


def test_file_larger_than_any_buffer_goes_up_and_comes_down(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    ana.ok("PUT", "/files/raw.scans/deep/er.bin", params={"branch": "master"}, content=_chunks())
    [entry] = ana.get("/files/raw.scans", path="deep")
    assert entry["size"] == LARGE
    digest = hashlib.sha256()
    with ana.http.stream("GET", "/files/raw.scans/deep/er.bin") as reply:
        assert reply.headers["content-length"] == str(LARGE)
        for chunk in reply.iter_bytes():
            digest.update(chunk)
    assert digest.hexdigest() == entry["digest"]


def test_edit_puts_and_removes_many_in_one_publication(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    ana.put("old.txt")
    digest = hashlib.sha256(b"new").hexdigest()
    assert ana.call("HEAD", f"/contents/{digest}").status_code == 404
    ana.ok("PUT", f"/contents/{digest}", content=b"new")
    assert ana.call("HEAD", f"/contents/{digest}").headers["content-length"] == "3"
    file = {"path": "bin/new", "size": 3, "digest": digest, "executable": True}
    folder = {"path": "empty"}
    done = ana.post("/files/raw.scans", branch="master", put=[file, folder], remove=["old.txt"])
    assert len(done["moves"]) == 1
    assert [f["path"] for f in ana.get("/files/raw.scans")] == ["bin/new", "empty/"]
    assert ana.get("/files/raw.scans", path="bin")[0]["executable"] is True


def test_edit_of_content_that_is_not_stored_or_lied_about_is_refused(api: Api) -> None:
    ana = api.admin
    ana.make_files()
    missing = {"path": "a", "size": 3, "digest": "0" * 64}
    body = {"branch": "master", "put": [missing]}
    assert ana.error(409, "POST", "/files/raw.scans", json=body) == "content_swept"
    digest = hashlib.sha256(b"new").hexdigest()
    ana.ok("PUT", f"/contents/{digest}", content=b"new")
    body = {"branch": "master", "put": [{"path": "a", "size": 4, "digest": digest}]}
    assert ana.error(400, "POST", "/files/raw.scans", json=body) == "invalid"
    assert ana.error(400, "PUT", f"/contents/{digest}", content=b"other") == "invalid"
    assert ana.get("/files/raw.scans") == []


@pytest.mark.parametrize(
    "path",
    ["..%2f..%2fetc%2fpasswd", "a/%2e%2e/%2e%2e/b", "%2fetc%2fpasswd", "a%5cb", "a%00b", "a//b"],
)
def test_path_that_would_leave_the_tree_is_refused(small_api: Api, path: str) -> None:
    ana = small_api.admin
    ana.make_files()
    for method in ("GET", "PUT", "DELETE"):
        reply = ana.call(method, f"/files/raw.scans/{path}?branch=master")
        assert reply.status_code in {400, 404}, reply.text
    assert ana.get("/files/raw.scans") == []


@pytest.mark.parametrize(
    "name", ["x' OR '1'='1", "x; DROP TABLE branches", 'x"--', "x%27%20UNION%20SELECT%201"]
)
def test_sql_in_names_finds_nothing_and_breaks_nothing(small_api: Api, name: str) -> None:
    ana = small_api.admin
    ana.make_files()
    for path in (f"/branches/raw.scans/{name}", f"/transactions/{name}", f"/status/{name}"):
        assert ana.call("GET", path).status_code in {200, 400, 404}
    assert ana.get("/log", actor=name) == [] and ana.get("/events", kind=name) == []
    assert ana.error(400, "POST", "/branches", json={"dataset": "raw.scans", "name": name})
    assert len(ana.get("/branches")) == 1


def test_body_over_the_limit_is_refused_announced_or_not(small_api: Api, front: Front) -> None:
    limits = ServerSettings(document_bytes=100, upload_bytes=1000)
    strict = Api(small_api.store, front, limits=limits)
    ana = strict.admin
    body = {"dataset": "raw.scans", "kind": "files", "branch": "m" * 200}
    assert ana.error(413, "POST", "/datasets", json=body) == "too_large"
    ana.post("/datasets", dataset="raw.scans", kind="files")
    where = "/files/raw.scans/a?branch=master"
    assert ana.error(413, "PUT", where, content=b"x" * 1001) == "too_large"
    assert ana.error(413, "PUT", where, content=iter([b"x" * 600, b"x" * 600])) == "too_large"
    ana.ok("PUT", where, content=b"x" * 1000)
    strict.close()


def test_key_repeated_is_replayed_and_refused_for_another_request(api: Api) -> None:
    ana = api.admin
    key = {"Idempotency-Key": "k1"}
    body = {"dataset": "raw.scans", "kind": "files"}
    for _ in range(2):
        ana.ok("POST", "/datasets", json=body, headers=key)
    put = {"params": {"branch": "master"}, "content": b"1", "headers": key}
    first = ana.call("PUT", "/files/raw.scans/a", **put)
    again = ana.call("PUT", "/files/raw.scans/a", **put)
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = ana.error(400, "PUT", "/files/raw.scans/a", **put | {"content": b"2"})
    assert other == "idempotency_key_reused"
    assert len(ana.get("/log")) == 2
    found = ana.get("/status/k1", kind="files-put")
    assert (found["state"], found["publication"]) == ("committed", 2)
