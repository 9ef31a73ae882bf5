"""Records of operations: one JSON line before each operation and one after it."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A file's digest, a row as [number, mark], or True for a member of a set; None: absent.
Value = Any
Content = Mapping[str, Value]


class Outcome(enum.StrEnum):
    OK = enum.auto()
    # Certainly not executed.
    FAIL = enum.auto()
    # The reply was lost, or the client was killed: executed once or not at all.
    UNKNOWN = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Write:
    """A change of one key of a place: a new value, or a number added to a row."""

    place: str
    key: str
    # None: the key is removed.
    value: Value = None
    add: int | None = None
    mark: str = ""

    def after(self, before: Value) -> Value:
        """Return the value that follows."""
        return self.value if self.add is None else [before[0] + self.add, self.mark]


@dataclass(frozen=True, kw_only=True)
class Read:
    """A value that a client saw, or that an operation requires."""

    place: str
    key: str
    value: Value


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for one operation, as its client recorded it before it sent it."""

    kind: str
    writes: tuple[Write, ...] = ()
    # Rows with these marks, and views with these transactions; otherwise nothing is executed.
    when: tuple[Read, ...] = ()
    # The view of each place that must not have moved.
    heads: Mapping[str, str] = field(default_factory=dict)
    # (source, target) of a merge.
    merge: tuple[str, str] | None = None
    # (place, transaction) of a reset, and the content that the client saw at that transaction.
    reset: tuple[str, str] | None = None
    restores: Mapping[str, Value] = field(default_factory=dict)
    # The operation that is sent again, with its key, after it was acknowledged.
    repeats: str | None = None
    # The publication at which a moment is read.
    moment: int | None = None
    # Its reply does not tell the number of its publication.
    untold: bool = False

    @property
    def is_write(self) -> bool:
        return bool(self.writes or self.merge or self.reset)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a client, from its first request to its last reply."""

    id: str
    client: str
    request: Request
    began: int
    # None: the client was killed meanwhile.
    ended: int | None
    outcome: Outcome
    # Number of its publication; None: it published nothing.
    number: int | None = None
    reads: tuple[Read, ...] = ()
    # All of a place, as a client saw it.
    contents: Mapping[str, Content] = field(default_factory=dict)
    # The view of a place that a client saw.
    views: Mapping[str, str] = field(default_factory=dict)
    # The newest publication that a client was told.
    newest: int | None = None
    # The number of requests sent for it.
    tries: int = 1
    reason: str = ""


class Recorder:
    """Writes the operations of one client; each line is complete before the next step."""

    def __init__(self, path: Path, client: str) -> None:
        self._client = client
        self._file = path.open("a", buffering=1)
        self._count = 0

    def next_id(self) -> str:
        self._count += 1
        return f"{self._client}-{self._count}"

    def begin(self, id: str, request: Request) -> None:
        self._write({"op": id, "at": time.monotonic_ns(), "request": _request_json(request)})

    def end(self, id: str, outcome: Outcome, **told: Any) -> None:
        self._write({"op": id, "at": time.monotonic_ns(), "outcome": outcome, "told": told})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        # One call for the whole line: what a client wrote stays when it is killed.
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read_operations(paths: Iterable[Path]) -> list[Operation]:
    """Return the operations of all clients, in the order in which they began."""
    found = [operation for path in paths for operation in _of_client(path)]
    return sorted(found, key=lambda operation: operation.began)


def _of_client(path: Path) -> list[Operation]:
    begun: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            # The last line of a client that was killed while it wrote.
            continue
        (begun if "request" in line else ended)[line["op"]] = line
    return [_operation(path.stem, line, ended.get(id)) for id, line in begun.items()]


def _operation(client: str, begun: Mapping[str, Any], ended: Mapping[str, Any] | None) -> Operation:
    request = _request(begun["request"])
    told: dict[str, Any] = dict(ended["told"]) if ended else {"reason": "client killed"}
    told["reads"] = tuple(Read(**one) for one in told.get("reads", ()))
    return Operation(
        id=begun["op"],
        client=client,
        request=request,
        began=begun["at"],
        ended=ended["at"] if ended else None,
        outcome=Outcome(ended["outcome"]) if ended else Outcome.UNKNOWN,
        **told,
    )


def _request_json(request: Request) -> dict[str, Any]:
    """Return the fields that have a value."""
    plain = {name: getattr(request, name) for name in request.__dataclass_fields__}
    for name in ("writes", "when"):
        plain[name] = [vars(one) for one in plain[name]]
    return {name: value for name, value in plain.items() if value not in (None, False, [], (), {})}


def _request(plain: Mapping[str, Any]) -> Request:
    found = dict(plain)
    found["writes"] = tuple(Write(**one) for one in found.get("writes", ()))
    found["when"] = tuple(Read(**one) for one in found.get("when", ()))
    for name in ("merge", "reset"):
        if name in found:
            first, second = found[name]
            found[name] = (first, second)
    return Request(**found)
