"""Uploads of a client other than data: code with its JobSpecs, and tables of other catalogs."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.builds.project import PublishReport, bundle_key
from headgate.errors import BranchProtected, Conflict, GitUnusable, Invalid, RoleDenied
from headgate.model.access import Role
from headgate.server.app import create_server
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.cli import new_cli
from tests.support.iceberg import Front
from tests.support.metadata import commit, table
from tests.support.repositories import Work, new_repository

MODULE = """
    from headgate.transforms import Input, Output, transform_df

    @transform_df(Output("sales.{name}"), orders=Input("sales.orders"))
    def compute(orders):
        return orders
"""


@pytest.fixture
def work(tmp_path: Path) -> Work:
    made = new_repository(tmp_path / "repository")
    made.write(daily=MODULE.format(name="daily"), hourly=MODULE.format(name="hourly"))
    made.commit()
    return made


@pytest.fixture
def ana(small_api: Api) -> Iterator[Store]:
    with headgate.open(small_api.url, token=small_api.token("ana", Role.ADMIN)) as hg:
        yield hg


def _bodies(done: PublishReport) -> list[Any]:
    return sorted((spec.body for spec in done.published), key=lambda body: str(body["outputs"]))


def test_jobspecs_published_from_afar_are_those_that_a_local_publication_makes(
    small_api: Api, ana: Store, work: Work
) -> None:
    there = ana.publish_jobspecs(work.root)
    here = small_api.store.publish_jobspecs(work.root)
    assert _bodies(there) == _bodies(here)
    assert (there.source, there.suspicions) == (here.source, here.suspicions)
    assert {s.actor for s in there.published} == {"ana"}
    digest = there.published[0].body["jobspec"]["bundle"]
    data = small_api.store.objects.get(bundle_key(digest))
    assert hashlib.sha256(data).hexdigest() == digest


def test_jobspec_left_out_is_marked_and_a_second_owner_is_refused(
    ana: Store, work: Work, tmp_path: Path
) -> None:
    ana.publish_jobspecs(work.root)
    (work.root / "hourly.py").unlink()
    with pytest.raises(GitUnusable, match="uncommitted changes"):
        ana.publish_jobspecs(work.root)
    work.commit()
    assert ana.publish_jobspecs(work.root).removed == ("sales.hourly",)
    other = new_repository(tmp_path / "other")
    other.write(daily=MODULE.format(name="daily"))
    other.commit()
    with pytest.raises(Conflict, match="made by the repository"):
        ana.publish_jobspecs(other.root)


def test_code_is_taken_from_admins_alone_unless_the_operator_says_otherwise(
    small_api: Api, front: Front, work: Work
) -> None:
    token = small_api.token("walt", Role.WRITER, "walt/*")
    with headgate.open(small_api.url, token=token) as walt:
        with pytest.raises(RoleDenied, match=r"writer and may not publish code\."):
            walt.publish_jobspecs(work.root, branch="walt/x", fallback=["master"])
        front.app = create_server(small_api.store, code_from=Role.WRITER)
        made = walt.publish_jobspecs(work.root, branch="walt/x", fallback=["master"])
        assert len(made.published) == 2
        with pytest.raises(RoleDenied, match=r"publish code on branch 'other' \(only walt"):
            walt.publish_jobspecs(work.root, branch="other", fallback=["master"])
        # The client reports a clean commit; the server cannot verify it.
        small_api.store.protect("walt/x")
        with pytest.raises(BranchProtected):
            walt.publish_jobspecs(work.root, branch="walt/x", fallback=["master"])
    wanted = [(e["code"], e["wanted"]) for e in small_api.admin.get("/events", kind="refused")]
    assert wanted[0] == ("branch_protected", "publish_jobspecs")


def _zip(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"no zip", "invalid"),
        (_zip(**{"../outside.py": "x"}), "unsafe_path"),
        (_zip(**{"/etc/x.py": "x"}), "unsafe_path"),
    ],
)
def test_bundle_that_could_not_be_unpacked_safely_is_refused(
    small_api: Api, data: bytes, code: str
) -> None:
    digest = hashlib.sha256(data).hexdigest()
    source = {"repository": "r", "commit": "abcdef0", "branch": "master", "clean": True}
    body = {"source": source, "bundle": digest, "jobspecs": []}
    assert small_api.admin.error(409, "POST", "/jobspecs", json=body) == "content_swept"
    small_api.admin.ok("PUT", f"/contents/{digest}", content=data)
    assert small_api.admin.error(400, "POST", "/jobspecs", json=body) == code


def test_command_line_publishes_and_plans_from_afar(
    small_api: Api,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = new_cli(work.root, monkeypatch, capsys)
    monkeypatch.setenv("HEADGATE_URL", small_api.url)
    monkeypatch.setenv("HEADGATE_TOKEN", small_api.token("ana", Role.ADMIN))
    done = cli.json("jobspecs", "publish")
    entries = {"daily.compute", "hourly.compute"}
    assert {spec["entry"] for spec in done["published"]} == entries
    assert {spec["entry"] for spec in cli.json("jobspecs", "list")} == entries


def _their_table(directory: Path) -> Path:
    file = directory / "theirs" / "metadata" / "v1.metadata.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(table(*commit(1), location=str(file.parent.parent))))
    return file


def test_table_of_another_catalog_is_registered_by_an_admin_from_afar(
    small_api: Api, ana: Store, tmp_path: Path
) -> None:
    file = _their_table(tmp_path)
    small_api.store.protect("master")
    ana.dataset("shop.orders").register(str(file), branch="master")
    found = small_api.store.dataset("shop.orders").load()
    assert (found.owned, [b.name for b in ana.dataset("shop.orders").branches()]) == (
        False,
        ["master"],
    )
    with pytest.raises(Invalid, match="whole path"):
        ana.dataset("shop.more").register("theirs", branch="master")
    walt = small_api.client("walt", Role.WRITER)
    body = {"metadata_location": str(file), "branch": "walt/x"}
    denied = walt.error(403, "POST", "/datasets/shop.more/register", json=body)
    assert denied == "role_denied"


def test_repeated_registration_with_the_same_key_is_one(small_api: Api, tmp_path: Path) -> None:
    body: dict[str, Any] = {"metadata_location": str(_their_table(tmp_path)), "branch": "master"}
    sent: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "k1"}}
    first = small_api.admin.ok("POST", "/datasets/shop.orders/register", **sent)
    assert small_api.admin.ok("POST", "/datasets/shop.orders/register", **sent) == first
    assert len(small_api.admin.get("/log")) == 1
