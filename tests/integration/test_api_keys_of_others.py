"""S04: a writer does not supersede, cancel or lock the work of another by naming its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import Invalid
from headgate.model.access import Role
from headgate.model.names import build_task_key, check_task_key
from headgate.store.documents import Json
from tests.support.api import Api, ApiClient
from tests.support.iceberg import Front
from tests.support.pipelines import FileJobs, files_spec, publish
from tests.support.stores import new_store

NIGHTLY = {"targets": ["s.y"], "branch": "master", "upstream": True, "task_key": "nightly"}
_SECRET = "1" * 43


@pytest.fixture
def api(made_catalog_url: str, tmp_path: Path, front: Front) -> Iterator[Api]:
    with new_store(made_catalog_url, tmp_path) as store:
        for branch in ("master", "walt/x"):
            publish(store, branch, files_spec("s.x"), files_spec("s.y", "s.x"))
        served = Api(store, front)
        yield served
        served.close()


@pytest.fixture
def jobs(api: Api, monkeypatch: pytest.MonkeyPatch) -> FileJobs:
    """Jobs of the server's builds, which end only when they are stopped."""
    made = FileJobs(store=api.store, endless=frozenset({"s.x"}))
    monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: made)
    return made


@pytest.fixture
def running(api: Api, jobs: FileJobs) -> Iterator[str]:
    """Start ana's build with a key of her scheduler; yield its id while it runs."""
    id = str(api.admin.ok("POST", "/builds", json=NIGHTLY)["build"])
    yield id
    api.admin.http.post(f"/builds/{id}/cancel")


def _state(api: Api, build: str) -> Json:
    record: Json = api.admin.get(f"/builds/{build}")
    return record


def _dispatch(client: ApiClient, key: str, status: int) -> str:
    body = {"key": key, "secret": _SECRET, "branch": "walt/x"}
    return client.error(status, "POST", "/tasks/attempts", json=body)


def test_s04_build_of_another_is_not_superseded_by_a_build_with_its_key(
    api: Api, running: str
) -> None:
    own = {**NIGHTLY, "branch": "walt/x"}
    assert api.writer.error(403, "POST", "/builds", json=own) == "attempt_of_another"
    assert _state(api, running)["state"] == "running"
    assert [build["build"] for build in api.admin.get("/builds")] == [running]


def test_s04_build_of_another_is_not_superseded_by_a_task_with_its_key(
    api: Api, running: str
) -> None:
    walt = api.writer
    for key in (running, f"{running}/0", build_task_key("nightly")):
        assert _dispatch(walt, key, 400) == "invalid"
    # The same word as the key of a task is another key.
    walt.ok("POST", "/tasks/attempts", json={"key": "nightly", "secret": _SECRET})
    assert _state(api, running)["state"] == "running"


def test_s04_task_of_another_is_not_superseded_by_a_build_with_its_key(
    api: Api, jobs: FileJobs
) -> None:
    task = {"key": "nightly", "secret": _SECRET, "branch": "master"}
    api.admin.ok("POST", "/tasks/attempts", json=task)
    id = api.writer.ok("POST", "/builds", json={**NIGHTLY, "branch": "walt/x"})["build"]
    assert api.admin.post("/tasks/attempts/renew", secret=_SECRET)["state"] == "running"
    api.writer.ok("POST", f"/builds/{id}/cancel")


def test_s04_key_of_a_build_that_has_ended_is_free(api: Api, running: str) -> None:
    api.admin.ok("POST", f"/builds/{running}/cancel")
    id = api.writer.ok("POST", "/builds", json={**NIGHTLY, "branch": "walt/x"})["build"]
    assert _state(api, id)["state"] == "running"
    api.writer.ok("POST", f"/builds/{id}/cancel")


@pytest.mark.parametrize("who", ["its actor", "an admin", "a writer of its branch"])
def test_s04_build_is_superseded_by_those_who_may(
    api: Api, running: str, jobs: FileJobs, who: str
) -> None:
    jobs.endless = frozenset()
    client = {
        "its actor": api.admin,
        "an admin": api.client("bo", Role.ADMIN),
        "a writer of its branch": api.client("cy", Role.WRITER, "master"),
    }[who]
    newer = client.ok("POST", "/builds", json=NIGHTLY)["build"]
    assert newer != running
    assert _state(api, running)["state"] == "canceled"


def test_s04_build_of_another_is_not_canceled_by_a_writer_of_other_branches(
    api: Api, running: str
) -> None:
    assert api.writer.error(403, "POST", f"/builds/{running}/cancel") == "role_denied"
    assert _state(api, running)["state"] == "running"


@pytest.mark.parametrize("key", ["build:x", "build-" + "0" * 22, "build-" + "0" * 22 + "/3"])
def test_key_of_builds_is_refused_for_a_task(key: str) -> None:
    with pytest.raises(Invalid, match="builds use such keys"):
        check_task_key(key)


@pytest.mark.parametrize("key", ["build-nightly", "builds", "wf/build-1/0"])
def test_key_that_only_resembles_one_of_builds_is_a_tasks(key: str) -> None:
    assert check_task_key(key) == key
