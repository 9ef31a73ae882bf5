"""Count the Headgate modules that one write executes: `python -m tools.trace_paths [-v]`.

The exit code is 1 if a write executes more modules than its goal.

Four writes run, each in a fresh store and a fresh process: `headgate files put`, an Iceberg
commit, a build of one job, and the process of a local task attempt. A module counts if one of its
functions runs between the start of the write and the UPDATE of a branch's view. Code that runs
while a module is imported does not count, nor does the body of the job.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import httpx
import sqlalchemy

from headgate.builds import spark_jobs
from headgate.builds.attempt import JobResult, Progress
from headgate.cli.main import run
from headgate.iceberg.app import IcebergApp
from headgate.iceberg.service import EmbeddedTokens, Service
from headgate.iceberg.table_catalog import TableCatalog
from headgate.model.contexts import BranchContext, encode_prefix
from headgate.settings import load_settings
from headgate.spark.job_protocol import JobOrder
from headgate.storage.address import read_outside
from headgate.store.embedded import Store
from headgate.tasks.definitions import load_task, parse_target
from headgate.tasks.supervisor import Request, run_locally
from headgate.worker import attempt
from tests.support.manifests import empty_manifest_list
from tests.support.pipelines import files_spec, publish
from tests.support.stores import files_branch, put

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = f"{_ROOT / 'src'}{os.sep}"
_FOUND = "modules.json"
_UPDATES_VIEW = re.compile(r'\s*UPDATE\s+"?branches"?\s+SET\b(?:(?!\bWHERE\b).)*\bview_id\b', re.S)


class Trace:
    """Records the modules whose functions run, until a branch's view is updated.

    It follows only threads that start after it is created.
    """

    def __init__(self) -> None:
        # Functions that ran, by module.
        self.modules: dict[str, set[str]] = {}
        self.is_over = False
        self._is_on = False
        self._importing = threading.local()
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", self._on_statement)
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)

    def start(self) -> None:
        """Record from here on."""
        self._is_on = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out calls inside the block."""
        was_on, self._is_on = self._is_on, False
        yield
        self._is_on = was_on

    def _on_statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if self._is_on and _UPDATES_VIEW.match(statement):
            self._is_on, self.is_over = False, True

    def _on_call(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(_SOURCE):
            return
        depth = getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif self._is_on and depth == 0 and code.co_flags & inspect.CO_OPTIMIZED:
            # A class body is not optimized, a function is.
            self.modules.setdefault(_module_of(code.co_filename), set()).add(code.co_qualname)


def _module_of(filename: str) -> str:
    path = filename.removeprefix(_SOURCE).removesuffix(".py").removesuffix(f"{os.sep}__init__")
    return path.replace(os.sep, ".")


def _headgate(*words: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run(words)
    if code != 0:
        raise RuntimeError(f"`headgate {' '.join(words)}` failed: {printed.getvalue()}")


# `headgate files put`


def prepare_files(directory: Path) -> None:
    """Make a store with an empty files dataset, and a file to put."""
    _headgate("init")
    _headgate("dataset", "create", "raw.scans", "--kind", "files")
    (directory / "local.txt").write_text("hello")


def put_file(trace: Trace) -> None:
    """Put one file on a branch."""
    trace.start()
    _headgate("files", "put", "raw.scans", "-b", "master", "local.txt", "a.txt")


# An Iceberg append over REST

_TABLES = "namespaces/db/tables"
_SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def prepare_table(_directory: Path) -> None:
    """Make a store with an empty table."""

    async def create() -> None:
        with Store(load_settings()) as store:
            async with _client(store) as client:
                await _post(client, "namespaces", {"namespace": ["db"]})
                await _post(client, _TABLES, {"name": "t", "schema": _SCHEMA})

    _headgate("init")
    asyncio.run(create())


def append_rows(trace: Trace) -> None:
    """Load a table, and commit a snapshot that appends to it; the commit is traced."""

    async def append() -> None:
        with Store(load_settings()) as store:
            async with _client(store) as client:
                loaded = (await client.get(f"{_TABLES}/t?snapshots=all")).raise_for_status()
                body = _append_to(loaded.json()["metadata"])
                listed = body["updates"][0]["snapshot"]["manifest-list"]
                Path(listed.removeprefix("file://")).write_bytes(empty_manifest_list())
                trace.start()
                await _post(client, f"{_TABLES}/t", body)

    asyncio.run(append())


def _append_to(metadata: dict[str, Any]) -> dict[str, Any]:
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{metadata['location']}/metadata/snap-1.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    main = {"ref-name": "main", "type": "branch", "snapshot-id": 1}
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", **main},
        ],
    }


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    (await client.post(path, json=body)).raise_for_status()


def _client(store: Store) -> httpx.AsyncClient:
    """Return a client of the store's Iceberg endpoint, on the branch master."""
    tokens = EmbeddedTokens(store.database)
    service = Service(
        catalog=TableCatalog(store.database),
        versions=store.tables,
        rules=store.rules,
        authorize=tokens,
        read_outside=partial(read_outside, options={}),
    )
    prefix = encode_prefix(BranchContext(chain=("master",)), client="1")
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(IcebergApp(service)),
        base_url=f"http://headgate/v1/{prefix}/",
        headers={"authorization": f"Bearer {tokens.issue('ana')}"},
    )


# A build of one job


def prepare_build(_directory: Path) -> None:
    """Make a store with an input, and a JobSpec that reads it."""
    _headgate("init")
    with Store(load_settings()) as store:
        put(files_branch(store, "raw.scans"), a="1")
        publish(store, "master", files_spec("made.totals", "raw.scans"))


def build_totals(trace: Trace) -> None:
    """Build the output, with a stand-in for the engine and for the job's process."""

    class Job:
        def __init__(self, resources: spark_jobs.JobResources, directory: Path) -> None:
            self._trees, self._written = resources.trees, directory / "written"

        def run(self, order: JobOrder, _progress: Progress) -> JobResult:
            with trace.paused():
                self._written.mkdir(parents=True)
                (self._written / "total").write_text("1")
                files = {name: self._trees.upload(self._written) for name in order.outputs}
            return JobResult(succeeded=True, written=tuple(files), files=files, rows=1)

    # This process ends with the build: nothing is restored.
    setattr(spark_jobs.JobResources, "expect", lambda resources, count: None)  # noqa: B010
    setattr(spark_jobs, "JobRunner", Job)  # noqa: B010
    trace.start()
    _headgate("build", "made.totals", "-b", "master")


# A local task attempt

_TASK = """
from pathlib import Path

from pydantic import BaseModel

from headgate.tasks import WorkspaceSpec, task


class Params(BaseModel):
    word: str


class Result(BaseModel):
    count: int


@task(name="sing", owner_email="ana@example.com", workspace=WorkspaceSpec())
def sing(workspace: Path, params: Params) -> Result:
    (workspace / "song.txt").write_text(params.word)
    return Result(count=1)
"""


def prepare_task(directory: Path) -> None:
    """Make a store with a workspace, and a task module."""
    _headgate("init")
    (directory / "songs.py").write_text(_TASK)
    with Store(load_settings()) as store:
        put(files_branch(store, "work.song"), a="1")


def supervise_task(directory: Path, command: tuple[str, ...]) -> None:
    """Run the task; the command is that of its attempt's process."""
    with Store(load_settings()) as store:
        view = store.dataset("work.song").branch("master").load().view
        workspace = {"repository": "work.song", "branch": "master"}
        data = {"workspace": workspace | {"ref_type": "commit", "ref": view}}
        request = Request(
            definition=load_task(parse_target("songs"), directory),
            target="songs:sing",
            directory=directory,
            data=data | {"params": {"word": "la"}},
            retries=0,
        )
        result = run_locally(replace(store.task_host, command=command), request)
        if result.outcome.reason:
            raise RuntimeError(result.outcome.reason)


def run_attempt(trace: Trace) -> None:
    """Execute the order that the supervisor sent to this process."""
    trace.start()
    attempt.main()


# The measurement


def _execute(_directory: Path, command: tuple[str, ...]) -> None:
    subprocess.run(command, check=True)


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write: its preparation, the traced part, and the maximum number of modules."""

    title: str
    goal: int
    prepare: Callable[[Path], None]
    traced: Callable[[Trace], None]
    # Starts the traced process.
    start: Callable[[Path, tuple[str, ...]], None] = _execute


WRITES = {
    "files": Write(title="files put", goal=30, prepare=prepare_files, traced=put_file),
    "iceberg": Write(title="Iceberg commit", goal=25, prepare=prepare_table, traced=append_rows),
    "build": Write(title="build of one job", goal=43, prepare=prepare_build, traced=build_totals),
    "task": Write(
        title="local task attempt",
        goal=30,
        prepare=prepare_task,
        traced=run_attempt,
        start=supervise_task,
    ),
}


def measure(name: str) -> dict[str, list[str]]:
    """Return the modules and functions that a write executes, traced in a process of its own."""
    write = WRITES[name]
    with TemporaryDirectory(prefix="headgate-trace-") as home, contextlib.chdir(home):
        found = Path(home) / _FOUND
        write.prepare(Path(home))
        write.start(
            Path(home), (sys.executable, "-m", "tools.trace_paths", "--traced", name, str(found))
        )
        modules: dict[str, list[str]] = json.loads(found.read_text())
    return modules


def _trace(name: str, found: Path) -> None:
    trace = Trace()
    WRITES[name].traced(trace)
    if not trace.is_over:
        raise RuntimeError(f"{WRITES[name].title} updated no branch's view")
    found.write_text(json.dumps({name: sorted(ran) for name, ran in trace.modules.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="list modules and functions")
    parser.add_argument("--traced", nargs=2, help=argparse.SUPPRESS)
    known, rest = parser.parse_known_args()
    if known.traced:
        # A supervisor appends an argument for the attempt's process.
        sys.argv = [sys.argv[0], *rest]
        _trace(known.traced[0], Path(known.traced[1]))
        return
    for variable in [one for one in os.environ if one.startswith("HEADGATE_")]:
        del os.environ[variable]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(_ROOT), str(_ROOT / "src")))
    os.environ["HEADGATE_ACTOR"] = "ana"
    print(f"{'path':20}{'modules':>8}{'goal':>6}")
    above = False
    for name, write in WRITES.items():
        modules = measure(name)
        above = above or len(modules) > write.goal
        print(f"{write.title:20}{len(modules):8}{write.goal:6}")
        for module, functions in sorted(modules.items()) if known.verbose else ():
            print(f"    {module}: {', '.join(functions)}")
    sys.exit(above)


if __name__ == "__main__":
    main()
