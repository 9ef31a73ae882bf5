"""A client over HTTP that fails over to the other server, and records what it was told."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.histories import places
from tests.support.histories.places import MASTER, place
from tests.support.histories.records import Outcome, Read, Recorder, Request, Write

_PATIENCE_SECONDS = 5.0
# How long an operation with a key is repeated.
_REPEAT_SECONDS = 25.0
_STATEMENT_SECONDS = 10.0
# Longer than any fault.
_LEASE_SECONDS = 5
# The server promises that such a request changed nothing.
_UNCHANGED = {"catalog_unavailable", "storage_unavailable", "busy"}
_PAUSE_SECONDS = (0.0, 0.12)


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        try:
            return str(self.json().get("code"))
        except (ValueError, AttributeError):
            return "none"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The outcome of a request that was repeated until its reply was certain, or too long."""

    outcome: Outcome
    reply: Reply | None
    tries: int


class Connection:
    """A connection to one of the servers; the other one is next."""

    def __init__(self, urls: Sequence[str], token: str, chance: random.Random) -> None:
        self._urls = list(urls)
        self._at = chance.randrange(len(urls))
        self._token = token
        self._open: http.client.HTTPConnection | None = None

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Reply | None:
        """Return the reply; None where it was lost."""
        if self._open is None:
            netloc = urlsplit(self._urls[self._at]).netloc
            self._open = http.client.HTTPConnection(netloc, timeout=_PATIENCE_SECONDS)
        kind = {"content-type": "application/json"} if method == "POST" else {}
        sent = {"authorization": f"Bearer {self._token}", **kind, **headers}
        try:
            self._open.request(method, f"/api/v1{path}", body, sent)
            reply = self._open.getresponse()
            return Reply(status=reply.status, body=reply.read())
        except (OSError, http.client.HTTPException):
            self.fail_over()
            return None

    def fail_over(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None
        self._at = (self._at + 1) % len(self._urls)


class HttpClient:
    """Sends one operation after the other, as its seed chooses."""

    def __init__(
        self, urls: Sequence[str], token: str, recorder: Recorder, chance: random.Random
    ) -> None:
        self._connection = Connection(urls, token, chance)
        self._recorder = recorder
        self._random = chance
        # Acknowledged operations, to be sent again: (operation, method, path, body, key).
        self._done: list[tuple[str, str, str, bytes | None, str]] = []
        # What this client saw at moments.
        self._moments: list[tuple[int, str]] = []

    def work(self, until: float) -> None:
        kinds: list[tuple[Callable[[], object], int]] = [
            (self.put, 8),
            (self.remove, 2),
            (self.edit, 2),
            (self.read_file, 8),
            (self.read_rows, 4),
            (self.read_list, 3),
            (self.read_together, 5),
            (self.read_moment_again, 3),
            (self.increment, 5),
            (self.increment_if_mark, 3),
            (self.increment_if_head, 2),
            (self.transfer, 4),
            (self.unit, 3),
            (self.merge, 2),
            (self.reset, 1),
            (self.repeat, 2),
        ]
        acts, weights = zip(*kinds, strict=True)
        while time.monotonic() < until:
            self._random.choices(acts, weights)[0]()
            time.sleep(self._random.uniform(*_PAUSE_SECONDS))

    # Files

    def put(self) -> None:
        """Put a file: mostly with a key, and then repeated until its outcome is known."""
        dataset, branch, path = self._some_path()
        id = self._recorder.next_id()
        data = self._data(id)
        where = f"/files/{dataset}/{path}?branch={branch}"
        write = Write(place=place(dataset, branch), key=path, value=digest_of(data))
        self._publish(id, Request(kind="put", writes=(write,)), "PUT", where, data)

    def remove(self) -> None:
        dataset, branch, path = self._some_path()
        write = Write(place=place(dataset, branch), key=path)
        where = f"/files/{dataset}/{path}?branch={branch}"
        self._publish(
            self._recorder.next_id(), Request(kind="remove", writes=(write,)), "DELETE", where
        )

    def edit(self) -> None:
        """Put two files, and remove one, in one publication."""
        id = self._recorder.next_id()
        data = self._data(id)
        sha = hashlib.sha256(data).hexdigest()
        stored = self._connection.send("PUT", f"/contents/{sha}", data)
        if stored is None or stored.status >= 300:
            return
        put, also = self._random.sample(places.PATHS, 2)
        entries = [{"path": path, "size": len(data), "digest": sha} for path in (put, also)]
        at = place(places.FILES)
        writes = tuple(Write(place=at, key=path, value=digest_of(data)) for path in (put, also))
        body = json.dumps({"branch": MASTER, "put": entries}).encode()
        request = Request(kind="edit", writes=writes)
        self._publish(id, request, "POST", f"/files/{places.FILES}", body)

    def read_file(self) -> None:
        dataset, branch, path = self._some_path()
        at = place(dataset, branch)
        id = self._begin(Request(kind="read file"))
        reply = self._connection.send("GET", f"/files/{dataset}/{path}?branch={branch}")
        if reply is None or reply.status not in (200, 404):
            self._unread(id, reply)
            return
        value = digest_of(reply.body) if reply.status == 200 else None
        self._end(id, Outcome.OK, reads=[vars(Read(place=at, key=path, value=value))])

    def read_list(self) -> None:
        dataset, branch, _ = self._some_path()
        id = self._begin(Request(kind="read list"))
        content = self._content(dataset, branch)
        if content is None:
            self._unread(id, None)
            return
        self._end(id, Outcome.OK, contents={place(dataset, branch): content})

    # Rows

    def read_rows(self, dataset: str | None = None) -> tuple[dict[str, Any], str] | None:
        """Read all rows of a table, and the transaction that shows them."""
        name = dataset or self._random.choice(places.TABLES)
        id = self._begin(Request(kind="read rows"))
        reply = self._connection.send("GET", f"/datasets/{name}/content?context=master&rows=100")
        if reply is None or reply.status != 200:
            self._unread(id, reply)
            return None
        shown = reply.json()
        content = {row["id"]: [row["n"], row["mark"]] for row in shown["rows"]}
        at, view = place(name), str(shown["transaction"])
        self._end(id, Outcome.OK, contents={at: content}, views={at: view})
        return content, view

    def increment(self) -> None:
        self._mutate("increment", [(self._random.choice(places.TABLES), self._some_row(), 1)])

    def transfer(self) -> None:
        """Move an amount from a row of one table to the same row of the other."""
        row, amount = self._some_row(), self._random.randint(1, 9)
        sides = [(places.LEFT, row, -amount), (places.RIGHT, row, amount)]
        self._random.shuffle(sides)
        self._mutate("transfer", sides)

    def increment_if_mark(self) -> None:
        """Increment a row while it has the mark that was read: a conditional write."""
        dataset, row = self._random.choice(places.TABLES), self._some_row()
        if (seen := self.read_rows(dataset)) is not None and row in seen[0]:
            mark = seen[0][row][1]
            when = (Read(place=place(dataset), key=row, value=mark),)
            self._mutate("increment if mark", [(dataset, row, 100)], when=when)

    def increment_if_head(self) -> None:
        """Increment a row while the table shows the transaction that was read."""
        dataset = self._random.choice(places.TABLES)
        if (seen := self.read_rows(dataset)) is not None:
            change = [(dataset, self._some_row(), 1000)]
            self._mutate("increment if head", change, heads={dataset: seen[1]})

    def _mutate(
        self,
        kind: str,
        changes: Sequence[tuple[str, str, int]],
        *,
        when: tuple[Read, ...] = (),
        heads: Mapping[str, str] = {},
    ) -> None:
        id = self._recorder.next_id()
        condition = "".join(f" and mark = '{one.value}'" for one in when)
        sql = ";\n".join(
            f"update {dataset} set n = n + {amount}, mark = '{id}' where id = '{row}'{condition}"
            for dataset, row, amount in changes
        )
        body = {"branch": MASTER, "sql": sql, "timeout_seconds": _STATEMENT_SECONDS}
        if heads:
            body["if_head"] = dict(heads)
        request = Request(
            kind=kind,
            writes=tuple(
                Write(place=place(dataset), key=row, add=amount, mark=id)
                for dataset, row, amount in changes
            ),
            when=when,
            heads={place(dataset): view for dataset, view in heads.items()},
        )
        self._publish(id, request, "POST", "/mutate", json.dumps(body).encode())

    # Moments, units, merges, resets

    def read_together(self) -> None:
        """Read two datasets at the moment of the newest publication."""
        pair = self._random.choice(
            [(places.LEFT, places.RIGHT), (places.LEFT_TREE, places.RIGHT_TREE)]
        )
        id = self._begin(Request(kind="read together"))
        log = self._connection.send("GET", "/log?limit=1")
        if log is None or log.status != 200:
            self._unread(id, log)
            return
        number = int(log.json()[0]["publication"])
        contents: dict[str, dict[str, Any]] = {}
        for dataset in pair:
            content = self._content(dataset, f"{MASTER}@{number}")
            if content is None:
                self._unread(id, None)
                return
            contents[place(dataset)] = content
            self._moments.append((number, dataset))
        self._end(id, Outcome.OK, contents=contents, newest=number)

    def read_moment_again(self) -> None:
        if not self._moments:
            return
        number, dataset = self._random.choice(self._moments)
        id = self._begin(Request(kind="read moment again", moment=number))
        content = self._content(dataset, f"{MASTER}@{number}")
        if content is None:
            self._unread(id, None)
            return
        self._end(id, Outcome.OK, contents={place(dataset): content})

    def unit(self) -> None:
        """Publish one file in each of two datasets, by a unit of transactions."""
        id, path = self._recorder.next_id(), self._random.choice(places.PATHS)
        data = self._data(id)
        opened = {"branch": MASTER, "lease_seconds": _LEASE_SECONDS}
        reply = self._connection.send("POST", "/units", json.dumps(opened).encode())
        if reply is None or reply.status >= 300:
            return
        name = reply.json()["unit"]
        for dataset in (places.LEFT_TREE, places.RIGHT_TREE):
            where = f"/files/{dataset}/{path}?txn={name}"
            reply = self._connection.send("PUT", where, data)
            if reply is None or reply.status >= 300:
                self._connection.send("POST", f"/transactions/{name}/abort", b"{}")
                return
        writes = tuple(
            Write(place=place(dataset), key=path, value=digest_of(data))
            for dataset in (places.LEFT_TREE, places.RIGHT_TREE)
        )
        self._publish(
            id, Request(kind="unit", writes=writes), "POST", f"/transactions/{name}/commit"
        )

    def merge(self) -> None:
        body = {"source": places.DEV, "into": MASTER, "datasets": [places.TREE]}
        sides = (place(places.TREE, places.DEV), place(places.TREE))
        self._publish(
            self._recorder.next_id(),
            Request(kind="merge", merge=sides),
            "POST",
            "/merge",
            json.dumps(body).encode(),
        )

    def reset(self) -> None:
        """Reset a tree to an earlier transaction, after a look at what that one shows."""
        dataset = places.LEFT_TREE
        reply = self._connection.send("GET", f"/history/{dataset}?branch=master&limit=5")
        if reply is None or reply.status != 200:
            return
        earlier = [one["transaction"] for one in reply.json()[1:] if one["state"] == "COMMITTED"]
        if not earlier:
            return
        to = self._random.choice(earlier)
        reply = self._connection.send("GET", f"/files/{dataset}?at={to}")
        if reply is None or reply.status != 200:
            return
        request = Request(
            kind="reset",
            reset=(place(dataset), to),
            restores={one["path"]: one["digest"][:16] for one in reply.json()},
        )
        body = json.dumps({"dataset": dataset, "branch": MASTER, "to": to}).encode()
        self._publish(self._recorder.next_id(), request, "POST", "/branches/reset", body)

    def repeat(self) -> None:
        """Send an acknowledged operation again, with its key: the first receipt is expected."""
        if not self._done:
            return
        first, method, path, body, key = self._random.choice(self._done[-20:])
        request = Request(kind="repeat", repeats=first)
        id = self._begin(request)
        self._finish(id, request, self._send(method, path, body, key))

    # Parts

    def _publish(
        self, id: str, request: Request, method: str, path: str, body: bytes | None = None
    ) -> None:
        key = f"key-{id}" if self._random.random() < 0.7 else None
        self._recorder.begin(id, request)
        sent = self._send(method, path, body, key)
        self._finish(id, request, sent)
        if key is not None and sent.outcome is Outcome.OK:
            self._done.append((id, method, path, body, key))

    def _send(self, method: str, path: str, body: bytes | None, key: str | None) -> Sent:
        """Send a request; one with a key again, to the other server, until its reply is certain."""
        headers = {"idempotency-key": key} if key else {}
        deadline = time.monotonic() + _REPEAT_SECONDS
        certain, tries = True, 0
        while True:
            tries += 1
            reply = self._connection.send(method, path, body, headers)
            if reply is not None and reply.status < 300:
                return Sent(outcome=Outcome.OK, reply=reply, tries=tries)
            if reply is not None and reply.status < 500:
                break
            # Repetitions that were rejected do not say whether the first request was executed.
            certain = certain and reply is not None and reply.code in _UNCHANGED
            if key is None or time.monotonic() > deadline:
                break
            if reply is not None:
                self._connection.fail_over()
            time.sleep(self._random.uniform(0.05, 0.5))
        outcome = Outcome.FAIL if certain else Outcome.UNKNOWN
        return Sent(outcome=outcome, reply=reply, tries=tries)

    def _finish(self, id: str, request: Request, sent: Sent) -> None:
        """Record the outcome, with what the reply says about the state."""
        told: dict[str, Any] = {"tries": sent.tries}
        if sent.outcome is Outcome.OK and sent.reply is not None:
            receipt = sent.reply.json()
            told["number"] = receipt["publication"]
            if moves := receipt.get("moves"):
                told["views"] = {place(m["dataset"], m["branch"]): m["to"] for m in moves}
        elif sent.reply is None:
            told["reason"] = "lost"
        else:
            told["reason"] = f"{sent.reply.status} {sent.reply.code}"
            if sent.outcome is Outcome.FAIL:
                told |= _seen(request, sent.reply)
        self._end(id, sent.outcome, **told)

    def _content(self, dataset: str, context: str) -> dict[str, Any] | None:
        """Return all of a dataset; None where the reply was lost."""
        if dataset in places.TABLES:
            where = f"/datasets/{dataset}/content?context={context}&rows=100"
        else:
            where = f"/files/{dataset}?branch={context}&limit=100"
        reply = self._connection.send("GET", where)
        if reply is None or reply.status != 200:
            return None
        if dataset in places.TABLES:
            return {row["id"]: [row["n"], row["mark"]] for row in reply.json()["rows"]}
        return {one["path"]: one["digest"][:16] for one in reply.json()}

    def _begin(self, request: Request) -> str:
        id = self._recorder.next_id()
        self._recorder.begin(id, request)
        return id

    def _end(self, id: str, outcome: Outcome, **told: Any) -> None:
        self._recorder.end(id, outcome, **told)

    def _unread(self, id: str, reply: Reply | None) -> None:
        reason = f"{reply.status} {reply.code}" if reply is not None else "lost"
        self._end(id, Outcome.UNKNOWN, reason=reason)

    def _some_path(self) -> tuple[str, str, str]:
        """Return a dataset, a branch and a path."""
        dataset = self._random.choice(places.TREES)
        if dataset != places.TREE:
            return dataset, MASTER, self._random.choice(places.PATHS)
        if self._random.random() < 0.5:
            return dataset, places.DEV, self._random.choice(places.DEV_PATHS)
        return dataset, MASTER, self._random.choice(places.MASTER_PATHS)

    def _some_row(self) -> str:
        return self._random.choice(places.ROWS)

    def _data(self, id: str) -> bytes:
        """Return the bytes of a file that no other operation writes; some need several packets."""
        size = self._random.choice([0, 0, 0, 200_000])
        return id.encode() + b"." * size


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _seen(request: Request, reply: Reply) -> dict[str, Any]:
    """Return what a rejection says about the state: an absent file, or another view."""
    body = reply.json()
    if reply.code == "file_not_found" and request.kind == "remove":
        write = request.writes[0]
        read = Read(place=write.place, key=write.key, value=None)
        return {"reads": [vars(read)], "views": {write.place: body["where"]}}
    moved = [one for one in body.get("conflicts", ()) if one.get("field") == "view"]
    return {"views": {place(one["dataset"], one["branch"]): one["actual"] for one in moved}}
