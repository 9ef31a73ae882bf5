"""Requests of the clients of a simulated store, by the verbs that every entrance calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from headgate.catalog.schema import log_counter
from headgate.errors import HeadgateError
from headgate.files.edits import FileEdit, write_uploaded
from headgate.model.changes import Receipt
from headgate.store.datasets import BranchHandle, DatasetHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.pipelines import FileJobs, build, files_spec, publish
from tests.support.stores import files_branch
from tests.support.tasks import SONG, Attempt, defined, input_of, writes

SOURCE, MIDDLE, END = "p.a", "p.b", "p.c"
ROWS = "t.rows"
# Written by hand; builds make the others.
WRITTEN = ("raw.x", "raw.y", SOURCE, SONG)
DATASETS = (*WRITTEN, MIDDLE, END)
MASTER = "master"
_BRANCHES = (MASTER, MASTER, MASTER, "dev", "feature")
_CHILDREN = ("dev", "feature")
# What a job of `tests.support.pipelines` reads.
_MADE = "made"
_DAY_SECONDS = 24 * 3600

Value = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of a client; a repeated one is the same, with the same key."""

    key: str
    verb: str
    a: int
    b: int
    c: int

    @property
    def branch(self) -> str:
        return _BRANCHES[self.b % len(_BRANCHES)]

    @property
    def dataset(self) -> str:
        return WRITTEN[self.a % len(WRITTEN)]

    @property
    def path(self) -> str:
        return _MADE if self.dataset == SOURCE else f"f{self.c // 10 % 3}"

    @property
    def text(self) -> str:
        """A text of this request alone; sometimes one that others write too."""
        return f"common {self.c % 3}" if self.c % 10 < 3 else self.key

    @property
    def is_forced(self) -> bool:
        """Whether a build computes what a reset removed."""
        return self.c % 4 == 0


def _prepare(store: Store, request: Request) -> Value:
    """Create the datasets of a simulated store."""
    for name in DATASETS:
        files_branch(store, name)
    for name in WRITTEN:
        branch = store.dataset(name).branch(MASTER)
        write_uploaded(lambda: [store_bytes(store, _MADE, b"first")], branch.edit)
    for name in WRITTEN[::2]:
        store.dataset(name).branch(_CHILDREN[0]).create(parent=MASTER)
    publish(store, MASTER, files_spec(MIDDLE, SOURCE), files_spec(END, MIDDLE))
    store.load(MASTER, {ROWS: [{"word": "first"}]}, create=True)
    return {}


def _branch(store: Store, request: Request) -> BranchHandle:
    return _dataset(store, request).branch(request.branch)


def _dataset(store: Store, request: Request) -> DatasetHandle:
    # Builds are reset and forked too.
    return store.dataset(DATASETS[request.a % len(DATASETS)])


def _told(receipt: Receipt) -> Value:
    return {
        "publication": receipt.publication,
        "transactions": dict(receipt.transactions),
        "replayed": receipt.replayed,
    }


def _put(store: Store, request: Request) -> Value:
    branch = store.dataset(request.dataset).branch(request.branch)
    return _told(
        write_uploaded(
            lambda: [store_bytes(store, request.path, request.text.encode())],
            lambda edit: branch.edit(edit, idempotency_key=request.key),
        )
    )


def _remove(store: Store, request: Request) -> Value:
    branch = store.dataset(request.dataset).branch(request.branch)
    return _told(branch.remove(request.path, idempotency_key=request.key))


def _commit(store: Store, request: Request) -> Value:
    opened = store.dataset(request.dataset).branch(request.branch).transaction()
    opened.write(request.path, request.text.encode())
    if request.c % 5 == 0:
        opened.abort()
        return {"publication": None}
    if request.c % 5 == 1:
        opened.write("second", request.text.encode())
    return _commit_twice(lambda: opened.commit(idempotency_key=request.key), request)


def _unit(store: Store, request: Request) -> Value:
    unit = store.transaction(request.branch)
    for name in WRITTEN[: 2 + request.a % 2]:
        unit.dataset(name).write(request.path, request.text.encode())
    if request.c % 5 == 0:
        unit.abort()
        return {"publication": None}
    return _commit_twice(lambda: unit.commit(idempotency_key=request.key), request)


def _commit_twice(commit: Callable[[], Receipt], request: Request) -> Value:
    """Commit; some clients repeat the request, because they have not seen the reply."""
    told = _told(commit())
    if request.c % 3 == 0:
        again = _told(commit())
        assert {**again, "replayed": False} == {**told, "replayed": False}, (told, again)
    return told


def _leave(store: Store, request: Request) -> Value:
    opened = store.dataset(request.dataset).branch(request.branch).transaction()
    opened.write(request.path, request.text.encode())
    return {}


def _fork(store: Store, request: Request) -> Value:
    name = _CHILDREN[request.b % len(_CHILDREN)]
    _dataset(store, request).branch(name).create(parent=MASTER, idempotency_key=request.key)
    return {}


def _delete(store: Store, request: Request) -> Value:
    branch = _dataset(store, request).branch(_CHILDREN[request.b % len(_CHILDREN)])
    return _told(branch.delete(force=True, idempotency_key=request.key))


def _restore(store: Store, request: Request) -> Value:
    branch = _dataset(store, request).branch(_CHILDREN[request.b % len(_CHILDREN)])
    return _told(branch.restore(idempotency_key=request.key))


def _reset(store: Store, request: Request) -> Value:
    branch = _branch(store, request)
    past = branch.history(limit=6)
    to = past[request.c % len(past)].id if past else "t-none"
    return _told(branch.reset(to=to, idempotency_key=request.key))


def _tag(store: Store, request: Request) -> Value:
    view = _branch(store, request).view()
    if view is not None:
        _dataset(store, request).tag(f"v{request.c % 3}", at=view.id)
    return {}


def _untag(store: Store, request: Request) -> Value:
    _dataset(store, request).untag(f"v{request.c % 3}")
    return {}


def _read(store: Store, request: Request) -> Value:
    return {"files": _files(store, _dataset(store, request), request.branch)}


def _moment(store: Store, request: Request) -> Value:
    number = store.database.read(lambda c: c.execute(select(log_counter.c.number)).scalar_one())
    number = max(1, number - request.c % 12)
    files: dict[str, dict[str, str] | None] = {}
    for name in DATASETS:
        try:
            files[name] = _files(store, store.dataset(name), f"{MASTER}@{number}")
        except HeadgateError as error:
            if error.code not in ("expired", "version_expired"):
                raise
            files[name] = None
    return {"number": number, "files": files}


def _files(store: Store, dataset: DatasetHandle, context: str) -> dict[str, str]:
    shown = dataset.shown(branch=context)
    return {e.path: store.trees.read(e).decode() for e in shown.entries() if not e.is_directory}


def _build(store: Store, request: Request) -> Value:
    outcome = build(
        store,
        (MIDDLE, END)[request.a % 2],
        jobs=FileJobs(store=store),
        branch=request.branch,
        fallback=() if request.branch == MASTER else (MASTER,),
        force=request.is_forced,
        atomic=request.a % 3 == 0,
        retries=1,
        task_key=f"{request.branch} {request.c % 2}" if request.b % 3 else None,
    )
    return {"state": outcome.state.value, "publications": list(outcome.publications)}


def _task(store: Store, request: Request) -> Value:
    given = store.dataset(SONG).branch(MASTER).view()
    assert given is not None, "the workspace was empty"
    attempt = Attempt(store=store, root=store.settings.root / "tasks", key=f"song {request.a % 2}")
    outcome = attempt.run(defined(writes(**{f"f{request.c % 3}": request.key})), input_of(given.id))
    return {
        "status": outcome.status.value,
        "code": outcome.code,
        "trace": outcome.traceback,
        "ref": outcome.output["workspace"]["ref"] if outcome.output else None,
        "attempt": (attempt.ref.key, attempt.ref.epoch),
    }


def _recover(store: Store, request: Request) -> Value:
    store.recover()
    return {}


def _clean(store: Store, request: Request) -> Value:
    done = store.clean_up(older_than_seconds=_DAY_SECONDS)
    return {name: done[name] for name in ("condemned", "deleted", "spared")}


def _probe(store: Store, request: Request) -> Value:
    """Write on every branch; nothing that was killed may block one for ever."""
    for name in DATASETS:
        for branch in store.dataset(name).branches():
            entry = store_bytes(store, "probe", request.key.encode())
            store.dataset(name).branch(branch.name).edit(FileEdit(put=[entry]))
    return {}


def _load(store: Store, request: Request) -> Value:
    if request.b % 3 == 0:
        found = store.dataset(ROWS).show(MASTER, rows=1000)
        return {"words": sorted(row["word"] for row in found["rows"])}
    rows = [{"word": request.key}]
    done = store.load(MASTER, {ROWS: rows}, mode="append", idempotency_key=request.key)
    return {"publication": done.publication, "loaded": request.key}


VERBS: Mapping[str, Callable[[Store, Request], Value]] = {
    "prepare": _prepare,
    "put": _put,
    "remove": _remove,
    "commit": _commit,
    "unit": _unit,
    "leave": _leave,
    "fork": _fork,
    "delete": _delete,
    "restore": _restore,
    "reset": _reset,
    "tag": _tag,
    "untag": _untag,
    "read": _read,
    "moment": _moment,
    "build": _build,
    "task": _task,
    "recover": _recover,
    "clean": _clean,
    "load": _load,
    "probe": _probe,
}
# A client repeats these after a reply that it has not seen.
KEYED = ("put", "remove", "fork", "delete", "restore", "reset", "load")
