"""A full disk, and other failures of the machine: each is named, and nothing is half done."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from headgate import errors
from headgate.cli.init import settings_text
from headgate.errors.families import kinds
from headgate.model.access import Role
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.cli import Cli, new_store_cli, put
from tests.support.disks import filled, small_disk
from tests.support.iceberg import Front
from tests.support.pipelines import FileJobs, files_spec, publish
from tests.support.postgres import PostgresServer
from tests.support.processes import run
from tests.support.rows import GRAPH, insert_people
from tests.support.site import serving
from tests.support.stores import content, files_branch, new_settings
from tests.support.task_modules import write_module

_FULL = {"storage_full", "catalog_full"}


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """A store on a small disk of its own, with a file and a table."""
    with small_disk(tmp_path / "disk") as disk:
        made = new_store_cli(disk, monkeypatch, capsys)
        put(made, "first")
        (tmp_path / "schema.toml").write_text(GRAPH)
        made.ok("schema", "apply", str(tmp_path / "schema.toml"), "-b", "master")
        (tmp_path / "large").write_bytes(os.urandom(64 * 1024))
        yield made


_WRITES: dict[str, tuple[str, ...]] = {
    "put": ("files", "put", "raw.scans", "-b", "master", "{tmp}/large", "large"),
    "create": ("dataset", "create", "raw.more", "--kind", "files"),
    "branch": ("branch", "create", "raw.scans", "other", "--from", "master"),
    "mutate": ("mutate", "-b", "master", insert_people(*(f"p{n}" for n in range(2000)))),
    "init": ("init", "{tmp}/disk/another"),
    "token": ("token", "create", "--actor", "bo", "--role", "reader"),
    "get": ("files", "get", "raw.scans", "-b", "master", "first", "{tmp}/disk/copy"),
}


@pytest.mark.parametrize("verb", _WRITES)
def test_command_on_a_full_disk_says_so_and_leaves_nothing(
    cli: Cli, tmp_path: Path, verb: str
) -> None:
    words = [word.replace("{tmp}", str(tmp_path)) for word in _WRITES[verb]]
    before = cli.json("log")
    with filled(cli.directory):
        refused = cli(*words, "--json")
        assert refused.code == 6, refused
        told = json.loads(refused.out)
        assert told["code"] in _FULL and "Free some space" in told["error"], told
        assert "Traceback" not in refused.err
    assert cli.json("log") == before
    assert cli(*words).code == 0
    assert cli.json("doctor")["ok"]


def test_output_to_a_full_device_is_reported_without_a_traceback(cli: Cli) -> None:
    for words in (["log"], ["log", "--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "headgate", *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 6, done.stderr
        assert "No space left" in done.stderr and "Traceback" not in done.stderr


_GREEDY = """
from pathlib import Path

from pydantic import BaseModel

from headgate.tasks import WorkspaceSpec, task


class Params(BaseModel):
    pass


@task(name="greedy", owner_email="a@example.com", description="Fills.", workspace=WorkspaceSpec())
def greedy(workspace: Path, params: Params) -> Params:
    (workspace / "much").write_bytes(b"x" * (64 << 20))
    return Params()
"""


@pytest.mark.parametrize("already_full", [True, False])
def test_task_whose_directory_is_full_fails_for_that_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    already_full: bool,
) -> None:
    """Before its process starts, and in the middle of the task's own code."""
    cli = new_store_cli(tmp_path, monkeypatch, capsys)
    ref = put(cli, "first")
    module = write_module(tmp_path, _GREEDY)
    workspace = {"repository": "raw.scans", "branch": "master", "refType": "commit", "ref": ref}
    (tmp_path / "input.json").write_text(json.dumps({"workspace": workspace, "params": {}}))
    words = ("task", "run", module, "--input", "input.json", "--retries", "0", "--json")
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("HEADGATE_TASKS_ROOT", str(disk / "tasks"))
        if already_full:
            (disk / "tasks").mkdir()
            with filled(disk):
                said = cli(*words)
        else:
            said = cli(*words)
        told = json.loads(said.out)
        assert told["code"] == "storage_full", told
        assert "Traceback" not in said.err
        assert [p for p in (disk / "tasks" / "attempts").glob("*") if p.is_dir()] == []
    assert [f["path"] for f in cli.json("files", "ls", "raw.scans", "-b", "master")] == ["first"]


def test_build_without_a_working_directory_is_closed_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(new_settings(f"sqlite:///{tmp_path}/catalog.db", tmp_path)) as store:
        publish(store, "master", files_spec("s.x"))
        jobs = FileJobs(store=store)
        monkeypatch.setattr("headgate.builds.run.SparkJobs", lambda parts: jobs)
        (tmp_path / ".headgate").mkdir()
        (tmp_path / ".headgate" / "work").write_text("a file where a directory should be")
        with pytest.raises(NotADirectoryError):
            store.build(["s.x"], branch="master")
        assert [build["state"] for build in store.builds()] == ["failed"]
        (tmp_path / ".headgate" / "work").unlink()
        assert store.build(["s.x"], branch="master").state == "succeeded"


# --- over HTTP ------------------------------------------------------------------------------


def test_full_storage_is_507_and_named_to_admins_alone(tmp_path: Path, front: Front) -> None:
    with small_disk(tmp_path / "disk") as disk:
        settings = new_settings(f"sqlite:///{tmp_path}/catalog.db", tmp_path)
        with Store(replace(settings, warehouse=str(disk / "warehouse"))) as store:
            files_branch(store)
            api = Api(store, front)
            body = os.urandom(64 * 1024)
            with filled(disk):
                for role, sees_paths in ((Role.WRITER, False), (Role.ADMIN, True)):
                    client = api.client("walt", role)
                    where = "/files/raw.scans/a?branch=master"
                    reply = client.call("PUT", where, content=body)
                    assert reply.status_code == 507, reply.text
                    assert reply.json()["code"] == "storage_full"
                    assert (str(tmp_path) in reply.text) is sees_paths
            assert content(store.dataset("raw.scans").branch("master")) == {}
            api.close()


def test_scratch_that_cannot_be_written_is_an_error_of_the_server(
    tmp_path: Path, front: Front
) -> None:
    """A failed system call outside the storage, which no part translates."""
    with Store(new_settings(f"sqlite:///{tmp_path}/catalog.db", tmp_path)) as store:
        files_branch(store)
        api = Api(store, front)
        with small_disk(tmp_path / ".headgate") as disk, filled(disk):
            reply = api.client("walt", Role.WRITER).call(
                "PUT", "/files/raw.scans/a?branch=master", content=b"x"
            )
        assert (reply.status_code, reply.json()["code"]) == (507, "storage_full"), reply.text
        assert str(tmp_path) not in reply.text and "defect" not in reply.text
        api.close()


def test_database_that_is_down_is_told_to_nobody_by_its_address(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    address = own_postgres.database_url(own_postgres.create_database())
    new_settings(address, tmp_path)
    text = settings_text(catalog=address, warehouse="warehouse", branch="master")
    (tmp_path / "headgate.toml").write_text(text)
    with serving(tmp_path) as (url, admin, _):
        signed_in = httpx.post(f"{url}/login", data={"token": admin}, timeout=60).cookies
        assert httpx.get(url, cookies=signed_in, timeout=60).status_code == 200
        own_postgres.kill()
        bearer = {"authorization": f"Bearer {admin}"}
        requests: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/readyz", {}),
            ("GET", "/metrics", {"headers": bearer}),
            ("GET", "/api/v1/datasets", {"headers": bearer}),
            ("GET", "/iceberg/v1/config?warehouse=master", {"headers": bearer}),
            ("POST", "/login", {"data": {"token": admin}}),
            ("GET", "/", {"cookies": signed_in}),
        ]
        parts = make_url(address)
        secrets = [str(parts.port), str(parts.database), "psycopg", str(tmp_path), "refused"]
        for method, path, how in requests:
            reply = httpx.request(method, f"{url}{path}", timeout=60, **how)
            assert reply.status_code == 503, (path, reply.status_code, reply.text)
            assert "does not respond" in reply.text, (path, reply.text)
            assert not [s for s in secrets if s in reply.text], (path, reply.text)
    assert str(parts.port) in (tmp_path / "serve.log").read_text()


_OF_THE_DOMAIN = {"file_not_found", "input_not_found"}


def test_every_error_that_has_an_address_can_be_told_without_it() -> None:
    given = {"where", "location", "url"}
    seen = set()
    for kind in kinds():
        signature = kind.__signature__
        named = given & set(signature.parameters) if signature is not None else set()
        if (
            not named
            or kind.code in _OF_THE_DOMAIN
            or not issubclass(kind, errors.Unavailable | errors.NotFound)
        ):
            continue
        assert signature is not None
        secret = "host.internal:5432/srv"
        values = {
            name: secret if name in {*given, "reason"} else "1" for name in signature.parameters
        }
        error = kind(**values)
        assert secret in str(error)
        told = json.dumps(error.without_addresses().to_json())
        assert secret not in told, kind
        assert error.without_addresses().code == error.code
        seen.add(kind.code)
    assert {"catalog_unavailable", "storage_full", "object_not_found"} <= seen


# --- open files -----------------------------------------------------------------------------


def test_too_many_open_files_are_named_with_the_limit(tmp_path: Path) -> None:
    settings = new_settings(f"sqlite:///{tmp_path}/catalog.db", tmp_path)
    with Store(settings) as store:
        files_branch(store)
    assert run(_open_without_descriptors, settings, tmp_path / "said") == 0
    said = (tmp_path / "said").read_text()
    assert said.startswith("too_many_open_files") and "ulimit -n" in said, said


def _open_without_descriptors(settings: Settings, said: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    answer = said.open("w")
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        with Store(settings) as store:
            store.publications()
        text = "nothing was refused"
    except errors.HeadgateError as error:
        text = f"{error.code}: {error}"
    with answer:
        answer.write(text)
