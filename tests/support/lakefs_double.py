"""Test double of a lakeFS server over HTTP, with responses in the SDK's own models.

It is not lakeFS: it follows the published client and API reference, enough to test our side of the
protocol where no server is available. The same cases run on a real server where one is configured.

As documented there: an object is identified by its checksum, so that the same bytes under a new
address are not a change; a commit or a merge without changes is 400; a merge into, and a hard reset
of, a branch with uncommitted changes is 400; a merge conflict is 409; a listing has at most 1000
results per page; an error has a message.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakefs_sdk import (
    Commit,
    Error,
    MergeResult,
    ObjectErrorList,
    ObjectStats,
    ObjectStatsList,
    Pagination,
    Ref,
    RefList,
    Repository,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.iceberg.app import LoopbackEndpoint

_Objects = dict[str, tuple[str, bytes]]
_NAME = re.compile(r"\w[-\w]*")
_MOST_PATHS = 1000
# File that a held request creates.
HELD = "held"


@dataclass
class _Branch:
    commit: str
    staged: dict[str, tuple[str, bytes] | None] = field(default_factory=dict)


class LakeFSDouble:
    """Repositories in memory; records the requests, so that tests can count them.

    With a `hold` directory, files in it control requests. `merge.before` holds a merge before its
    effect, which then never happens; `merge.after` holds it between the effect and the response.
    `merge.refuse` rejects it, and `merge.lost` answers 500 after the effect. `refuse` and `reject`
    do the same in this process: a 500, or a status and a message of the test's choice.
    """

    def __init__(self, hold: Path | None = None) -> None:
        self._hold = hold
        self._numbers = itertools.count(1)
        self.commits: dict[str, tuple[Commit, _Objects]] = {}
        self.branches: dict[tuple[str, str], _Branch] = {}
        self.protected: set[str] = set()
        self.calls: list[str] = []
        self.refuse: set[str] = set()
        self.reject: dict[str, tuple[int, str]] = {}
        self.largest_page = 1000

    def make_repository(self, repository: str, files: dict[str, str]) -> str:
        objects = {path: self._stored(text.encode()) for path, text in files.items()}
        self.branches[(repository, "main")] = _Branch(self._commit((), objects, "first", {}))
        return self.branches[(repository, "main")].commit

    def show(self, repository: str, branch: str) -> dict[str, str]:
        _, objects = self.commits[self.branches[(repository, branch)].commit]
        return {path: data.decode() for path, (_, data) in objects.items()}

    def addresses(self, repository: str, branch: str) -> dict[str, str]:
        _, objects = self.commits[self.branches[(repository, branch)].commit]
        return {path: address for path, (address, _) in objects.items()}

    @contextmanager
    def serving(self) -> Iterator[str]:
        endpoint = LoopbackEndpoint(self._app())
        try:
            yield endpoint.start()
        finally:
            endpoint.stop()

    def _app(self) -> Starlette:
        at = "/api/v1/repositories/{repository}"
        routes = [
            ("GET", "/branches", self._list_branches),
            ("POST", "/branches", self._create_branch),
            ("GET", "/branches/{branch}", self._get_branch),
            ("DELETE", "/branches/{branch}", self._delete_branch),
            ("PUT", "/branches/{branch}/hard_reset", self._hard_reset),
            ("POST", "/branches/{branch}/commits", self._make_commit),
            ("POST", "/branches/{branch}/objects", self._upload),
            ("POST", "/branches/{branch}/objects/delete", self._delete_objects),
            ("GET", "/commits/{id}", self._get_commit),
            ("GET", "/refs/{ref}/objects/ls", self._list_objects),
            ("GET", "/refs/{ref}/objects", self._get_object),
            ("POST", "/refs/{source}/merge/{target}", self._merge),
        ]
        all_of_them = [
            *(Route(f"{at}{path}", self._counted(do), methods=[m]) for m, path, do in routes),
            Route("/api/v1/repositories", self._counted(self._create_repository), methods=["POST"]),
            Route(at, self._counted(self._delete_repository), methods=["DELETE"]),
        ]
        return Starlette(routes=all_of_them)

    def _counted(self, do: Any) -> Any:
        async def handler(request: Request) -> Response:
            name = do.__name__.strip("_")
            self.calls.append(name)
            if name in self.refuse or self._is_told(f"{name}.refuse"):
                return _error(500, f"{name} is refused")
            if name in self.reject:
                return _error(*self.reject[name])
            if await self._held(f"{name}.before"):
                return _error(500, f"{name} was held")
            answer: Response = await do(request)
            await self._held(f"{name}.after")
            if self._is_told(f"{name}.lost"):
                return _error(500, f"the answer of {name} is lost")
            return answer

        return handler

    def _is_told(self, what: str) -> bool:
        return self._hold is not None and (self._hold / what).exists()

    async def _held(self, where: str) -> bool:
        """Wait while the file for this point exists; return True if the request was held."""
        if self._hold is None or not self._is_told(where):
            return False
        (self._hold / HELD).touch()
        while (self._hold / where).exists():
            await asyncio.sleep(0.01)
        return True

    def _stored(self, data: bytes) -> tuple[str, bytes]:
        return f"mem://{next(self._numbers)}", data

    def _commit(
        self, parents: tuple[str, ...], objects: _Objects, message: str, metadata: dict[str, str]
    ) -> str:
        id = hashlib.sha256(f"{next(self._numbers)}".encode()).hexdigest()
        commit = Commit(
            id=id,
            parents=list(parents),
            committer="double",
            message=message,
            creation_date=0,
            meta_range_id="m",
            metadata=metadata,
        )
        self.commits[id] = (commit, dict(objects))
        return id

    def _branch(self, request: Request, name: str = "branch") -> _Branch | None:
        params = request.path_params
        return self.branches.get((params["repository"], params[name]))

    def _resolve(self, request: Request, ref: str) -> str | None:
        branch = self.branches.get((request.path_params["repository"], ref))
        return branch.commit if branch else (ref if ref in self.commits else None)

    async def _create_repository(self, request: Request) -> Response:
        body = await request.json()
        first = self._commit((), {}, "first", {})
        self.branches[(body["name"], body["default_branch"])] = _Branch(first)
        made = Repository(
            id=body["name"],
            creation_date=0,
            default_branch=body["default_branch"],
            storage_namespace=body["storage_namespace"],
        )
        return _json(made, 201)

    async def _delete_repository(self, request: Request) -> Response:
        name = request.path_params["repository"]
        self.branches = {key: b for key, b in self.branches.items() if key[0] != name}
        return Response(status_code=204)

    async def _list_branches(self, request: Request) -> Response:
        named = request.path_params["repository"]
        if not any(repository == named for repository, _ in self.branches):
            return _error(404, "repository not found")
        found = {name: b for (repository, name), b in self.branches.items() if repository == named}
        names, page = self._page(request, found)
        refs = [Ref(id=name, commit_id=found[name].commit) for name in names]
        return _json(RefList(pagination=page, results=refs))

    def _page(self, request: Request, found: Iterable[str]) -> tuple[list[str], Pagination]:
        query = request.query_params
        prefix, after = query.get("prefix", ""), query.get("after", "")
        amount = min(int(query.get("amount", "100")), self.largest_page)
        rest = [name for name in sorted(found) if name.startswith(prefix) and name > after]
        page = Pagination(
            has_more=len(rest) > amount,
            next_offset=rest[amount - 1] if len(rest) > amount else "",
            results=len(rest[:amount]),
            max_per_page=self.largest_page,
        )
        return rest[:amount], page

    async def _create_branch(self, request: Request) -> Response:
        body = await request.json()
        key = (request.path_params["repository"], body["name"])
        source = self._resolve(request, body["source"])
        if not _NAME.fullmatch(body["name"]):
            return _error(400, f"invalid branch name {body['name']}")
        if source is None:
            return _error(404, "source reference not found")
        if key in self.branches:
            return _error(409, "branch already exists")
        self.branches[key] = _Branch(source)
        return PlainTextResponse(f'"{source}"', 201)

    async def _get_branch(self, request: Request) -> Response:
        branch = self._branch(request)
        if branch is None:
            return _error(404, "branch not found")
        return _json(Ref(id=request.path_params["branch"], commit_id=branch.commit))

    async def _delete_branch(self, request: Request) -> Response:
        params = request.path_params
        if self.branches.pop((params["repository"], params["branch"]), None) is None:
            return _error(404, "branch not found")
        return Response(status_code=204)

    async def _hard_reset(self, request: Request) -> Response:
        branch, ref = self._branch(request), request.query_params["ref"]
        if request.path_params["branch"] in self.protected:
            return _error(403, "cannot write to protected branch")
        commit = self._resolve(request, ref)
        if branch is None or commit is None:
            return _error(404, "reference not found")
        if branch.staged:
            return _error(400, "uncommitted changes")
        branch.commit = commit
        return Response(status_code=204)

    async def _make_commit(self, request: Request) -> Response:
        body, branch = await request.json(), self._branch(request)
        if branch is None:
            return _error(404, "branch not found")
        if request.path_params["branch"] in self.protected:
            return _error(403, "cannot write to protected branch")
        before = self.commits[branch.commit][1]
        objects = dict(before)
        for path, staged in branch.staged.items():
            if staged is None:
                objects.pop(path, None)
            elif _content(objects, path) != staged[1]:
                objects[path] = staged
        if objects == before:
            return _error(400, "commit: no changes")
        branch.commit = self._commit(
            (branch.commit,), objects, body["message"], body.get("metadata") or {}
        )
        branch.staged = {}
        return _json(self.commits[branch.commit][0], 201)

    async def _upload(self, request: Request) -> Response:
        branch = self._branch(request)
        if branch is None:
            return _error(404, "branch not found")
        if request.path_params["branch"] in self.protected:
            return _error(403, "cannot write to protected branch")
        async with request.form() as form:
            content = form["content"]
            assert not isinstance(content, str)
            stored = self._stored(await content.read())
        path = request.query_params["path"]
        branch.staged[path] = stored
        return _json(_stats(path, stored), 201)

    async def _delete_objects(self, request: Request) -> Response:
        branch, paths = self._branch(request), (await request.json())["paths"]
        if branch is None:
            return _error(404, "branch not found")
        if request.path_params["branch"] in self.protected:
            return _error(403, "cannot write to protected branch")
        if len(paths) > _MOST_PATHS:
            return _error(400, f"at most {_MOST_PATHS} paths per request")
        for path in paths:
            branch.staged[path] = None
        return _json(ObjectErrorList(errors=[]))

    async def _get_commit(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["id"])
        if commit is None:
            return _error(404, "commit not found")
        return _json(self.commits[commit][0])

    async def _list_objects(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["ref"])
        if commit is None:
            return _error(404, "reference not found")
        objects = self.commits[commit][1]
        paths, page = self._page(request, objects)
        shown = [_stats(path, objects[path]) for path in paths]
        return _json(ObjectStatsList(pagination=page, results=shown))

    async def _get_object(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["ref"])
        path = request.query_params["path"]
        if commit is None or path not in self.commits[commit][1]:
            return _error(404, "object not found")
        return Response(self.commits[commit][1][path][1])

    async def _merge(self, request: Request) -> Response:
        body, target = await request.json(), self._branch(request, "target")
        source = self._resolve(request, request.path_params["source"])
        if source is None or target is None:
            return _error(404, "reference not found")
        if target.staged:
            return _error(400, "uncommitted changes")
        assert body["squash_merge"]
        base = self._merge_base(source, target.commit)
        theirs, ours = self.commits[source][1], self.commits[target.commit][1]
        changed = {p for p in {*base, *theirs} if _content(base, p) != _content(theirs, p)}
        wanted = {p for p in changed if _content(theirs, p) != _content(ours, p)}
        if not wanted:
            return _error(400, "merge: no changes")
        if conflicts := sorted(p for p in wanted if _content(base, p) != _content(ours, p)):
            return _error(409, f"conflict found: {conflicts[0]}")
        objects = {path: stored for path, stored in ours.items() if path not in wanted}
        objects |= {path: theirs[path] for path in wanted if path in theirs}
        target.commit = self._commit(
            (target.commit,), objects, body.get("message", ""), body.get("metadata") or {}
        )
        return _json(MergeResult(reference=target.commit))

    def _merge_base(self, source: str, target: str) -> _Objects:
        """Return the objects of the newest commit that both have; commits have one parent here."""
        shared = set(self._history(target))
        found = next((commit for commit in self._history(source) if commit in shared), None)
        return {} if found is None else self.commits[found][1]

    def _history(self, commit: str | None) -> Iterator[str]:
        while commit is not None:
            yield commit
            commit = next(iter(self.commits[commit][0].parents), None)


def _content(objects: _Objects, path: str) -> bytes | None:
    return objects[path][1] if path in objects else None


def _stats(path: str, stored: tuple[str, bytes]) -> ObjectStats:
    address, data = stored
    return ObjectStats(
        path=path,
        path_type="object",
        physical_address=address,
        checksum=hashlib.md5(data, usedforsecurity=False).hexdigest(),
        size_bytes=len(data),
        mtime=0,
    )


def _json(model: Any, status: int = 200) -> Response:
    return JSONResponse(model.to_dict(), status)


def _error(status: int, message: str) -> Response:
    return JSONResponse(Error(message=message).to_dict(), status)


def serve_double(directory: Path) -> None:
    """Serve a double in a process of its own, until it is killed; write its URL into a file."""
    with LakeFSDouble(hold=directory).serving() as url:
        (directory / "url.new").write_text(url)
        (directory / "url.new").rename(directory / "url")
        signal.pause()
