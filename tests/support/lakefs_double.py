"""Test double of a lakeFS server over HTTP, with responses in the SDK's own models.

It is not lakeFS: it follows the published client and API reference, enough to test our side of the
protocol where no server is available. The same cases run on a real server where one is configured.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import signal
from collections.abc import Iterator
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
    `merge.refuse` rejects it, and `merge.lost` answers 500 after the effect.
    """

    def __init__(self, hold: Path | None = None) -> None:
        self._hold = hold
        self._numbers = itertools.count(1)
        self.commits: dict[str, tuple[Commit, _Objects]] = {}
        self.branches: dict[tuple[str, str], _Branch] = {}
        self.protected: set[str] = set()
        self.calls: list[str] = []
        self.refuse: set[str] = set()

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
        prefix = request.query_params.get("prefix", "")
        found = [
            Ref(id=name, commit_id=branch.commit)
            for (repository, name), branch in sorted(self.branches.items())
            if repository == request.path_params["repository"] and name.startswith(prefix)
        ]
        return _json(RefList(pagination=_page(len(found)), results=found))

    async def _create_branch(self, request: Request) -> Response:
        body = await request.json()
        key = (request.path_params["repository"], body["name"])
        source = self._resolve(request, body["source"])
        if source is None:
            return _error(404, "no source")
        if key in self.branches:
            return _error(409, "branch exists")
        self.branches[key] = _Branch(source)
        return PlainTextResponse(f'"{source}"', 201)

    async def _get_branch(self, request: Request) -> Response:
        branch = self._branch(request)
        if branch is None:
            return _error(404, "no branch")
        return _json(Ref(id=request.path_params["branch"], commit_id=branch.commit))

    async def _delete_branch(self, request: Request) -> Response:
        params = request.path_params
        if self.branches.pop((params["repository"], params["branch"]), None) is None:
            return _error(404, "no branch")
        return Response(status_code=204)

    async def _hard_reset(self, request: Request) -> Response:
        branch, ref = self._branch(request), request.query_params["ref"]
        if request.path_params["branch"] in self.protected:
            return _error(403, "branch is protected")
        commit = self._resolve(request, ref)
        if branch is None or commit is None:
            return _error(404, "no such ref")
        branch.commit, branch.staged = commit, {}
        return Response(status_code=204)

    async def _make_commit(self, request: Request) -> Response:
        body, branch = await request.json(), self._branch(request)
        assert branch is not None
        objects = dict(self.commits[branch.commit][1])
        for path, staged in branch.staged.items():
            if staged is None:
                objects.pop(path, None)
            else:
                objects[path] = staged
        branch.commit = self._commit(
            (branch.commit,), objects, body["message"], body.get("metadata") or {}
        )
        branch.staged = {}
        return _json(self.commits[branch.commit][0], 201)

    async def _upload(self, request: Request) -> Response:
        branch = self._branch(request)
        assert branch is not None
        async with request.form() as form:
            content = form["content"]
            assert not isinstance(content, str)
            stored = self._stored(await content.read())
        path = request.query_params["path"]
        branch.staged[path] = stored
        return _json(_stats(path, stored), 201)

    async def _delete_objects(self, request: Request) -> Response:
        branch = self._branch(request)
        assert branch is not None
        for path in (await request.json())["paths"]:
            branch.staged[path] = None
        return _json(ObjectErrorList(errors=[]))

    async def _get_commit(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["id"])
        if commit is None:
            return _error(404, "no commit")
        return _json(self.commits[commit][0])

    async def _list_objects(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["ref"])
        if commit is None:
            return _error(404, "no ref")
        query = request.query_params
        prefix, after = query.get("prefix", ""), query.get("after", "")
        amount = min(int(query.get("amount", "100")), 1000)
        objects = self.commits[commit][1]
        paths = [p for p in sorted(objects) if p.startswith(prefix) and p > after]
        shown = [_stats(path, objects[path]) for path in paths[:amount]]
        page = Pagination(
            has_more=len(paths) > amount,
            next_offset=paths[amount - 1] if len(paths) > amount else "",
            results=len(shown),
            max_per_page=1000,
        )
        return _json(ObjectStatsList(pagination=page, results=shown))

    async def _get_object(self, request: Request) -> Response:
        commit = self._resolve(request, request.path_params["ref"])
        path = request.query_params["path"]
        if commit is None or path not in self.commits[commit][1]:
            return _error(404, "no object")
        return Response(self.commits[commit][1][path][1])

    async def _merge(self, request: Request) -> Response:
        body, target = await request.json(), self._branch(request, "target")
        source = self._resolve(request, request.path_params["source"])
        if source is None or target is None:
            return _error(404, "no such branch")
        objects = dict(self.commits[target.commit][1])
        base = self.commits[self.commits[source][0].parents[0]][1]
        changed = self.commits[source][1]
        objects.update({p: o for p, o in changed.items() if base.get(p) != o})
        for path in set(base) - set(changed):
            objects.pop(path, None)
        assert body["squash_merge"]
        target.commit = self._commit(
            (target.commit,), objects, body.get("message", ""), body.get("metadata") or {}
        )
        return _json(MergeResult(reference=target.commit))


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


def _page(count: int) -> Pagination:
    return Pagination(has_more=False, next_offset="", results=count, max_per_page=1000)


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
