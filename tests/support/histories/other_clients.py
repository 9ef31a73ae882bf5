"""Clients by the command line, PyIceberg and Spark: fewer operations, of the same records."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.histories import places
from tests.support.histories.http_client import digest_of
from tests.support.histories.places import MASTER, place
from tests.support.histories.records import Outcome, Recorder, Request, Write

# The property of a snapshot that names the operation which appended it.
MARK = "history.operation"
_EVENTS = place(places.EVENTS)
_COMMAND_SECONDS = 60.0
# Exit codes of commands after which nothing was published.
_USAGE, _NOT_FOUND, _CONFLICT, _DENIED = 2, 3, 4, 5
_TRIES = 8
# The pause after a request to a server that does not answer.
_FAILED_SECONDS = 0.5


class CommandClient:
    """Runs `headgate` on the store or by a server; kills some commands, and repeats them."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        recorder: Recorder,
        chance: random.Random,
        *,
        root: Path,
    ) -> None:
        self._urls, self._token = list(urls), token
        self._recorder, self._random, self._root = recorder, chance, root

    def work(self, until: float) -> None:
        while time.monotonic() < until:
            if self._random.random() < 0.6:
                self._put()
            else:
                self._increment()
            time.sleep(self._random.uniform(0.0, 0.5))

    def _put(self) -> None:
        id, path = self._recorder.next_id(), self._random.choice(places.PATHS)
        data = id.encode()
        file = self._root / f"{id}.bin"
        file.write_bytes(data)
        write = Write(place=place(places.FILES), key=path, value=digest_of(data))
        words = ["files", "put", places.FILES, str(file), path, "-b", MASTER]
        self._run(id, Request(kind="put by command", writes=(write,)), words)
        file.unlink()

    def _increment(self) -> None:
        id, row = self._recorder.next_id(), self._random.choice(places.ROWS)
        dataset = self._random.choice(places.TABLES)
        write = Write(place=place(dataset), key=row, add=1, mark=id)
        sql = f"update {dataset} set n = n + 1, mark = '{id}' where id = '{row}'"
        words = ["mutate", "-b", MASTER, "--timeout", "10", sql]
        self._run(id, Request(kind="increment by command", writes=(write,)), words)

    def _run(self, id: str, request: Request, words: Sequence[str]) -> None:
        self._recorder.begin(id, request)
        certain, code = True, ""
        for tries in range(1, _TRIES + 1):
            status, said = self._once([*words, "--idempotency-key", f"key-{id}", "--json"])
            code = str(said.get("code", f"exit {status}"))
            if status == 0:
                number = said["publication"]
                self._recorder.end(id, Outcome.OK, number=number, tries=tries)
                return
            if status in (_USAGE, _NOT_FOUND, _CONFLICT, _DENIED):
                break
            certain = certain and code == "catalog_unavailable"
            time.sleep(self._random.uniform(0.1, 1.0))
        outcome = Outcome.FAIL if certain else Outcome.UNKNOWN
        self._recorder.end(id, outcome, tries=tries, reason=code)

    def _once(self, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """Run a command; it may be killed at any time."""
        # The token's actor: an idempotency key belongs to one actor, and the next try of a command
        # that was killed may use the other entrance.
        environ = {**os.environ, "HEADGATE_ACTOR": "clients"}
        if self._random.random() < 0.5:
            url = self._random.choice(self._urls)
            environ |= {"HEADGATE_URL": url, "HEADGATE_TOKEN": self._token}
        killed = self._random.random() < 0.2
        patience = self._random.uniform(0.3, 2.0) if killed else _COMMAND_SECONDS
        try:
            done = subprocess.run(
                [sys.executable, "-m", "headgate", *words],
                cwd=self._root,
                env=environ,
                capture_output=True,
                timeout=patience,
            )
        except subprocess.TimeoutExpired:
            # `run` killed it, by SIGKILL.
            return -9, {"code": "killed"}
        try:
            return done.returncode, dict(json.loads(done.stdout))
        except ValueError:
            return done.returncode or -1, {"code": done.stderr.decode()[-200:]}


class IcebergClient:
    """Appends rows by PyIceberg, and reads all rows."""

    def __init__(
        self, urls: Sequence[str], token: str, recorder: Recorder, chance: random.Random
    ) -> None:
        self._urls, self._token = list(urls), token
        self._recorder, self._random = recorder, chance

    def work(self, until: float) -> None:
        while time.monotonic() < until:
            if self._random.random() < 0.6:
                self._append()
            else:
                self._read()
            time.sleep(self._random.uniform(0.0, 0.3))

    def _table(self) -> Any:
        from pyiceberg.catalog.rest import RestCatalog

        uri = f"{self._random.choice(self._urls)}/iceberg"
        catalog = RestCatalog("headgate", uri=uri, warehouse=MASTER, token=self._token)
        return catalog.load_table(places.EVENTS)

    def _append(self) -> None:
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException

        try:
            table = self._table()
        except Exception:
            time.sleep(_FAILED_SECONDS)
            return
        id = self._recorder.next_id()
        self._recorder.begin(id, append_of("append by pyiceberg", id))
        try:
            table.append(pa.table({"id": [id]}), snapshot_properties={MARK: id})
        except CommitFailedException:
            self._recorder.end(id, Outcome.FAIL, reason="CommitFailedException")
        except Exception as error:
            self._recorder.end(id, Outcome.UNKNOWN, reason=type(error).__name__)
        else:
            # Its number is not told; the witness has it.
            self._recorder.end(id, Outcome.OK)

    def _read(self) -> None:
        id = self._recorder.next_id()
        self._recorder.begin(id, Request(kind="read by pyiceberg"))
        try:
            rows = self._table().scan().to_arrow()["id"].to_pylist()
        except Exception as error:
            self._recorder.end(id, Outcome.UNKNOWN, reason=type(error).__name__)
            time.sleep(_FAILED_SECONDS)
        else:
            _told_rows(self._recorder, id, rows)


class SparkClient:
    """Appends rows by Spark, and reads all rows, in sessions bound to either server."""

    def __init__(
        self, urls: Sequence[str], token: str, recorder: Recorder, chance: random.Random
    ) -> None:
        self._urls, self._token = list(urls), token
        self._recorder, self._random = recorder, chance

    def work(self, until: float) -> None:
        from tests.support.spark import SHARED_SPARK, bind

        local = SHARED_SPARK.get().session
        sessions: dict[str, Any] = {}
        try:
            while time.monotonic() < until:
                url = self._random.choice(self._urls)
                if url not in sessions:
                    uri = f"{url}/iceberg"
                    # A new session reads the configuration of the endpoint, which may be down.
                    with suppress(Exception):
                        sessions[url] = bind(local, uri=uri, context=MASTER, token=self._token)
                else:
                    act = self._append if self._random.random() < 0.6 else self._read
                    act(sessions[url])
        finally:
            SHARED_SPARK.stop()

    def _append(self, session: Any) -> None:
        id = self._recorder.next_id()
        self._recorder.begin(id, append_of("append by spark", id))

        def append() -> None:
            rows = session.sql(f"select '{id}' as id")
            rows.writeTo(places.EVENTS).option(f"snapshot-property.{MARK}", id).append()

        if self._try(id, append):
            self._recorder.end(id, Outcome.OK)

    def _read(self, session: Any) -> None:
        id = self._recorder.next_id()
        self._recorder.begin(id, Request(kind="read by spark"))
        rows: list[str] = []
        query = f"select id from {places.EVENTS}"
        if self._try(id, lambda: rows.extend(row.id for row in session.sql(query).collect())):
            _told_rows(self._recorder, id, rows)

    def _try(self, id: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:
            self._recorder.end(id, Outcome.UNKNOWN, reason=type(error).__name__)
            return False
        return True


def append_of(kind: str, id: str) -> Request:
    return Request(kind=kind, writes=(Write(place=_EVENTS, key=id, value=True),), untold=True)


def _told_rows(recorder: Recorder, id: str, rows: Sequence[str]) -> None:
    """Record the rows of a scan; a row that is there twice is another content than the model's."""
    content = {row: True if rows.count(row) == 1 else rows.count(row) for row in rows}
    recorder.end(id, Outcome.OK, contents={_EVENTS: content})


def run_client(
    role: str, client: str, seed: str, urls: Sequence[str], token: str, folder: Path, until: float
) -> None:
    """Run one client until a time of the monotonic clock."""
    from tests.support.histories.http_client import HttpClient

    chance = random.Random(seed)
    recorder = Recorder(folder / "records" / f"{client}.jsonl", client)
    with suppress(KeyboardInterrupt):
        if role == "command":
            root = folder / "store"
            CommandClient(urls, token, recorder, chance, root=root).work(until)
        else:
            kinds: dict[str, type[HttpClient | IcebergClient | SparkClient]] = {
                "http": HttpClient,
                "pyiceberg": IcebergClient,
                "spark": SparkClient,
            }
            kinds[role](urls, token, recorder, chance).work(until)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run_client(**{**given, "folder": Path(given["folder"])})
