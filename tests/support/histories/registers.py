"""Histories of single registers for porcupine, which knows nothing of publication numbers.

A history is linearizable if the history of each partition is. A partition is a path of a files
dataset, all rows with one key in tables that are changed together, or a member of a set. An
operation on several partitions is given to each of them in part. Targets of merges are left out:
what a merge writes is not known to its client.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.histories.checker import Witness
from tests.support.histories.records import Operation, Outcome, Value

PROGRAM = Path(__file__).parents[3] / "tools" / "linearizable"
NO_GO = "porcupine: skipped, there is no `go` on this machine"
_FOREVER = 2**62
_CHECK_SECONDS = 120
_NEW_NANOSECONDS = 60 * 10**9


@dataclass(kw_only=True)
class _Part:
    """An operation in one partition."""

    reads: dict[str, str] = field(default_factory=dict)
    when: dict[str, str] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    adds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Linearizability:
    """Partitions by what porcupine says of them: Ok, Illegal, or Unknown after its time."""

    partitions: int
    operations: int
    illegal: list[str]
    undecided: list[str]


def find_go() -> str | None:
    return shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")


def check_registers(
    operations: Sequence[Operation], witness: Witness, *, together: Mapping[str, str], work: Path
) -> Linearizability:
    """Run porcupine on the registers of a history; `together` names groups of places."""
    go = find_go()
    assert go is not None, NO_GO
    program = work / "linearizable"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=PROGRAM, check=True)
    file = work / "registers.jsonl"
    with file.open("w") as lines:
        for line in _lines(operations, witness, together):
            lines.write(json.dumps(line) + "\n")
    answered = subprocess.run(
        [str(program), str(file), str(_CHECK_SECONDS)], check=True, capture_output=True, text=True
    )
    verdicts = [json.loads(line) for line in answered.stdout.splitlines()]
    return Linearizability(
        partitions=len(verdicts),
        operations=sum(one["operations"] for one in verdicts),
        illegal=[one["partition"] for one in verdicts if one["result"] == "Illegal"],
        undecided=[one["partition"] for one in verdicts if one["result"] == "Unknown"],
    )


def _lines(
    operations: Sequence[Operation], witness: Witness, together: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the initial values of each partition, then its operations."""
    merged = {one.request.merge[1] for one in operations if one.request.merge is not None}
    known, appended = _known_keys(witness), _Appended(operations)
    first: dict[str, dict[str, str]] = {}
    parts: list[tuple[Operation, str, _Part]] = []
    for one in operations:
        for partition, part in _split(one, known, appended, together, merged).items():
            parts.append((one, partition, part))
            values = first.setdefault(partition, {})
            for cell in {*part.reads, *part.when, *part.sets, *part.adds}:
                values.setdefault(cell, _initial(cell, witness))
    for partition, values in first.items():
        yield {"partition": partition, "initial": values}
    clients = {name: number for number, name in enumerate(sorted({o.client for o in operations}))}
    for one, partition, part in parts:
        unknown = one.outcome is Outcome.UNKNOWN
        yield {
            "partition": partition,
            "client": clients[one.client],
            "call": one.began,
            "return": _FOREVER if unknown or one.ended is None else one.ended,
            **vars(part),
            "applied": None if unknown or not part.when else one.number is not None,
        }


def _split(
    one: Operation,
    known: Mapping[str, set[str]],
    appended: _Appended,
    together: Mapping[str, str],
    merged: set[str],
) -> dict[str, _Part]:
    """Return the parts of an operation, by partition; none where it certainly did nothing."""
    found: dict[str, _Part] = {}
    request = one.request
    if request.repeats is not None:
        return {}

    def part(place: str, key: str) -> _Part | None:
        name = f"{together.get(place, place)}/{key}"
        return None if place in merged else found.setdefault(name, _Part())

    # A moment is a read of now only if the client was just told that it is the newest.
    if one.outcome is not Outcome.UNKNOWN and (request.moment is None or one.newest is not None):
        for read in one.reads:
            if at := part(read.place, read.key):
                at.reads.update(_cells(read.place, read.key, read.value))
        for place, content in one.contents.items():
            for key in known[place] | set(content):
                if appended.adds_nothing(one, place, key, content.get(key)):
                    continue
                if at := part(place, key):
                    at.reads.update(_cells(place, key, content.get(key)))
    if one.outcome is Outcome.FAIL or not request.is_write:
        return found
    for require in request.when:
        if at := part(require.place, require.key):
            at.when[f"{require.place}/{require.key}#mark"] = require.value
    for write in request.writes:
        if at := part(write.place, write.key):
            if write.add is None:
                at.sets.update(_cells(write.place, write.key, write.value))
            else:
                at.adds[f"{write.place}/{write.key}#n"] = write.add
                at.sets[f"{write.place}/{write.key}#mark"] = write.mark
    if request.reset is not None:
        place = request.reset[0]
        for key in known[place] | set(request.restores):
            if at := part(place, key):
                at.sets.update(_cells(place, key, request.restores.get(key)))
    return found


class _Appended:
    """When members of sets were added: a later read says nothing new about an old member."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._began = {
            (write.place, write.key): one.began
            for one in operations
            if one.request.untold
            for write in one.request.writes
        }

    def adds_nothing(self, read: Operation, place: str, key: str, value: Value) -> bool:
        """Return True if a read of this member cannot contradict other operations on it."""
        began = self._began.get((place, key))
        if began is None:
            return False
        if value is None:
            return read.ended is not None and read.ended < began
        return value is True and read.began > began + _NEW_NANOSECONDS


def _known_keys(witness: Witness) -> dict[str, set[str]]:
    """Return all keys that each place ever had."""
    found: dict[str, set[str]] = {place: set(now) for place, now in witness.contents.items()}
    for publication in witness.publications:
        for place, content in publication.contents.items():
            found.setdefault(place, set()).update(content)
    return found


def _cells(place: str, key: str, value: Value) -> dict[str, str]:
    """Return the registers of a value: two for a row."""
    if isinstance(value, (list, tuple)):
        return {f"{place}/{key}#n": str(value[0]), f"{place}/{key}#mark": str(value[1])}
    return {f"{place}/{key}": "" if value is None else str(value)}


def _initial(cell: str, witness: Witness) -> str:
    name, _, part = cell.partition("#")
    place, _, key = name.partition("/")
    value = witness.contents.get(place, {}).get(key)
    return _cells(place, key, value).get(cell, "") if value is not None or not part else ""
