"""Attempts of tasks over HTTP, request by request: ownership, validation, and idempotency."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.files.edits import root_of
from headgate.files.objects import Digest, digest_of
from headgate.files.tree import EMPTY, Entry, Mode, encode_index, encode_leaf
from headgate.model.access import Role
from headgate.server.api.tasks import AttemptModel, PublishedWorkspaceModel, WorkspaceModel
from headgate.store.transactions import store_bytes
from tests.support.api import Api, ApiClient
from tests.support.stores import load

_SCHEMA = '[dataset."t.a"]\ncolumns = {id = "long"}\nkey = ["id"]\n'
_FIRST, _SECOND = "1" * 43, "2" * 43


@pytest.fixture
def given(small_api: Api) -> str:
    """A committed input on master."""
    small_api.admin.make_files()
    return str(small_api.admin.put("a", b"1")["moves"][0]["to"])


def _dispatch(client: ApiClient, secret: str = _FIRST, key: str = "k", **more: Any) -> int:
    told = client.post("/tasks/attempts", key=key, secret=secret, **{"branch": "master", **more})
    AttemptModel.model_validate(told)
    return int(told["epoch"])


def _body(given: str, root: str | None, secret: str = _FIRST, **more: Any) -> dict[str, Any]:
    made = {"secret": secret, "branch": "master", "ref": given, "root": root, "task": "sing"}
    return {"json": {**made, **more}}


def _publish(client: ApiClient, given: str, root: str | None, secret: str = _FIRST) -> str:
    reply = client.ok("POST", "/tasks/workspaces/raw.scans", **_body(given, root, secret))
    PublishedWorkspaceModel.model_validate(reply)
    return str(reply["ref"])


def _refused(client: ApiClient, status: int, given: str, root: str | None, **more: Any) -> str:
    return client.error(status, "POST", "/tasks/workspaces/raw.scans", **_body(given, root, **more))


def _tree(api: Api, given: str, **files: bytes) -> str:
    """Store the tree of the input with these files added."""
    put = [store_bytes(api.store, path, data) for path, data in files.items()]
    before = root_of(load(api.store, given).version)
    return api.store.trees.edit(before, put=put).root


def _view(api: Api) -> str:
    return str(api.admin.get("/branches/raw.scans/master")["view"])


def test_dispatch_is_one_epoch_however_often_its_secret_is_sent(small_api: Api, given: str) -> None:
    ana = small_api.admin
    assert [_dispatch(ana), _dispatch(ana)] == [1, 1]
    assert [_dispatch(ana, _SECOND), _dispatch(ana)] == [2, 1]
    again = {"json": {"secret": _FIRST}}
    assert ana.error(409, "POST", "/tasks/attempts/renew", **again) == "attempt_superseded"
    assert ana.post("/tasks/attempts/renew", secret=_SECOND)["state"] == "running"
    assert _refused(ana, 400, given, None, secret=_SECOND, branch="other") == "invalid"
    other = {"json": {"key": "another", "secret": _SECOND}}
    assert ana.error(400, "POST", "/tasks/attempts", **other) == "invalid"


def test_publication_sent_again_answers_the_first_time_whatever_came_since(
    small_api: Api, given: str
) -> None:
    ana = small_api.admin
    _dispatch(ana)
    root = _tree(small_api, given, b=b"2")
    made = _publish(ana, given, root)
    assert made == _view(small_api) and load(small_api.store, made).parent == given
    facts = load(small_api.store, made).provenance
    assert (facts["task"], facts["epoch"], facts["replaced"]) == ("sing", 1, None)
    ana.put("theirs", b"3")
    _dispatch(ana, _SECOND)
    before = ana.get("/log")
    reply = ana.call("POST", "/tasks/workspaces/raw.scans", **_body(given, root))
    assert reply.headers["idempotency-replayed"] == "true" and reply.json()["ref"] == made
    assert _refused(ana, 400, given, EMPTY) == "idempotency_key_reused"
    assert ana.get("/log") == before


def test_no_change_sent_again_answers_the_first_time(small_api: Api, given: str) -> None:
    ana = small_api.admin
    _dispatch(ana)
    assert _publish(ana, given, None) == given
    ana.put("theirs", b"3")
    assert _publish(ana, given, None) == given
    _dispatch(ana, _SECOND)
    assert _refused(ana, 409, given, None, secret=_SECOND) == "publish_fence"


def test_superseded_or_ended_attempt_is_refused_and_a_newer_one_replaces(
    small_api: Api, given: str
) -> None:
    ana = small_api.admin
    _dispatch(ana)
    lost = _publish(ana, given, _tree(small_api, given, lost=b"x"))
    zombie, root = "0" * 43, _tree(small_api, given, kept=b"y")
    _dispatch(ana, zombie)
    _dispatch(ana, _SECOND)
    assert _refused(ana, 409, given, root, secret=zombie) == "attempt_superseded"
    made = _publish(ana, given, root, _SECOND)
    assert (load(small_api.store, made).parent, _view(small_api)) == (given, made)
    assert load(small_api.store, made).provenance["replaced"] == lost
    _dispatch(ana, "3" * 43)
    ana.post("/tasks/attempts/end", secret="3" * 43, state="failed")
    assert _refused(ana, 409, given, root, secret="3" * 43) == "attempt_superseded"


def test_attempt_is_its_dispatchers_alone(small_api: Api, given: str) -> None:
    bo = small_api.client("bo", Role.ADMIN)
    _dispatch(small_api.admin)
    ended = {"json": {"secret": _FIRST, "state": "failed"}}
    renewed = {"json": {"secret": _FIRST}}
    assert bo.error(403, "POST", "/tasks/attempts/end", **ended) == "attempt_of_another"
    assert bo.error(403, "POST", "/tasks/attempts/renew", **renewed) == "attempt_of_another"
    assert _refused(bo, 403, given, None) == "attempt_of_another"
    assert _refused(bo, 404, given, None, secret=_SECOND) == "attempt_not_found"
    assert small_api.admin.post("/tasks/attempts/renew", secret=_FIRST)["state"] == "running"


def test_key_is_taken_over_by_whoever_may_write_for_it(small_api: Api, given: str) -> None:
    _dispatch(small_api.admin)
    taken = {"json": {"key": "k", "secret": _SECOND, "branch": "walt/x"}}
    walt = small_api.writer
    assert walt.error(403, "POST", "/tasks/attempts", **taken) == "attempt_of_another"
    master = {"json": {"key": "new", "secret": _SECOND, "branch": "master"}}
    assert walt.error(403, "POST", "/tasks/attempts", **master) == "role_denied"
    assert _dispatch(small_api.client("bo", Role.WRITER), _SECOND) == 2
    assert _dispatch(small_api.admin, "3" * 43) == 3


def test_protected_branch_is_moved_by_an_admins_attempt_alone(small_api: Api, given: str) -> None:
    small_api.admin.post("/schema/apply", branch="master", text=_SCHEMA)
    small_api.admin.ok("PUT", "/protected/master")
    bo, root = small_api.client("bo", Role.WRITER), _tree(small_api, given, b=b"2")
    _dispatch(bo)
    tables = {"secret": _FIRST, "repository": "raw.scans", "branch": "master", "ref": given}
    opened = {"json": {**tables, "outputs": ["t.a"]}}
    assert bo.error(403, "POST", "/tasks/attempts/tables", **opened) == "branch_protected"
    assert _refused(bo, 403, given, root) == "branch_protected"
    assert _view(small_api) == given
    _dispatch(small_api.admin, _SECOND)
    assert _publish(small_api.admin, given, root, _SECOND) == _view(small_api)


def _missing(api: Api, given: str) -> str:
    """Return a tree with a content that was never stored."""
    return _named(api, [Entry(path="b", mode=Mode.FILE, size=1, digest=digest_of(b"never"))])


def _unsorted(api: Api, given: str) -> str:
    digest = api.store.trees.store(b"x")
    entries = [Entry(path=p, mode=Mode.FILE, size=1, digest=digest) for p in ("b", "a", "a")]
    return _named(api, entries)


def _unsafe(api: Api, given: str) -> str:
    digest = api.store.trees.store(b"x")
    return _named(api, [Entry(path="../b", mode=Mode.FILE, size=1, digest=digest)])


def _no_tree(api: Api, given: str) -> str:
    return api.store.trees.store(b"no tree at all")


def _named(api: Api, entries: list[Entry]) -> Digest:
    leaf, data = encode_leaf(entries)
    api.store.trees.store(data)
    return api.store.trees.store(encode_index([leaf]))


@pytest.mark.parametrize(
    ("made", "status", "code"),
    [
        (_missing, 409, "content_swept"),
        (_unsorted, 400, "invalid"),
        (_unsafe, 400, "unsafe_path"),
        (_no_tree, 400, "invalid"),
        (lambda api, given: "0" * 64, 404, "object_not_found"),
    ],
    ids=["missing content", "unsorted", "unsafe", "no tree", "unknown"],
)
def test_tree_that_is_not_whole_is_not_published(
    small_api: Api, given: str, made: Any, status: int, code: str
) -> None:
    _dispatch(small_api.admin)
    assert _refused(small_api.admin, status, given, made(small_api, given)) == code
    assert _view(small_api) == given


def test_workspace_shows_the_root_of_its_input(small_api: Api, given: str) -> None:
    where = "/tasks/workspaces/raw.scans"
    found = small_api.reader.get(where, branch="master", ref=given)
    WorkspaceModel.model_validate(found)
    assert found["root"] == root_of(load(small_api.store, given).version)
    unknown = {"params": {"branch": "master", "ref": "t-none"}}
    assert small_api.reader.error(404, "GET", where, **unknown) == "transaction_not_found"
