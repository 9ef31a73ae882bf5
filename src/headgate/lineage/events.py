"""OpenLineage events, sent in the background: a build neither waits for them nor fails of them."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headgate.builds.attempt import Happened, JobHappening
from headgate.catalog.database import Database
from headgate.catalog.records import load_transactions
from headgate.model.ids import TransactionId
from headgate.model.nouns import Transaction
from headgate.settings import LineageSettings
from headgate.tables.versions import TableVersions

# What an event says, before it is put into anybody's classes; pure but for reading a schema.

# Ids of events are made of ids of builds, so that all events of one attempt say the same.
_IDS = uuid.UUID("5f0c9c1e-6d0e-4a8b-9f43-7b3f0f7f2d11")


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    type: str
    doc: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    name: str
    branch: str
    transaction: str | None
    content: str | None = None
    location: str | None = None
    fields: tuple[Field, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """One event, in our own words."""

    what: Happened
    at: datetime
    run: str
    parent: str
    job: str
    parent_job: str
    source: Mapping[str, Any]
    facet: Mapping[str, Any]
    inputs: tuple[DatasetFacts, ...]
    outputs: tuple[DatasetFacts, ...]
    error: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Read:
    """A transaction, and the means to see which columns its version has."""

    transaction: Transaction
    tables: TableVersions

    def fields(self) -> tuple[Field, ...]:
        """The columns of a table; a tree of files has none."""
        version = self.transaction.version
        if version is None or not _is_table(version.location):
            return ()
        return tuple(_fields(self.tables.read(version.location).metadata))


def facts_of(happening: JobHappening, read: Mapping[str, Read]) -> EventFacts:
    """Everything an event says of a happening."""
    spec = happening.decision.job.spec
    complete = happening.what is Happened.COMPLETE
    inputs = tuple(
        _dataset(given["dataset"], given["branch"], given["transaction"], read)
        for given in happening.inputs
    )
    # Before it is complete, an output has a name and a transaction, but nothing to show.
    outputs = tuple(
        _dataset(name, happening.branch, id, read if complete else {})
        for name, id in happening.outputs.items()
    )
    if complete and happening.attempt and len(outputs) == 1:
        # Of several outputs nobody counts which rows went where.
        outputs = (replace(outputs[0], rows=happening.rows),)
    return EventFacts(
        what=happening.what,
        at=happening.at,
        run=_run_id(happening),
        parent=_id(f"build {happening.build}"),
        job=spec.title,
        parent_job=f"build.{happening.branch}",
        source={
            "repository": spec.source.repository,
            "commit": spec.source.commit,
            "file": spec.declaration.file,
        },
        facet=_facet(happening),
        inputs=inputs,
        outputs=outputs,
        error=happening.error if happening.what is Happened.FAIL else None,
    )


def _facet(happening: JobHappening) -> dict[str, Any]:
    candidate = happening.decision.candidate
    return {
        "build": happening.build,
        "branch": happening.branch,
        "fallback": list(happening.fallback),
        "actor": happening.actor,
        "attempt": happening.attempt.epoch if happening.attempt else None,
        "taskKey": happening.attempt.key if happening.attempt else None,
        "transactions": dict(happening.outputs),
        "reason": happening.decision.reason.value,
        "jobspecBranch": happening.decision.job.jobspec_branch,
        "adoptedFrom": candidate.branch if candidate else None,
        "sparkJobs": happening.spark_jobs,
        "rows": happening.rows,
    }


def _dataset(
    name: str, branch: str, transaction: str | None, read: Mapping[str, Read]
) -> DatasetFacts:
    found = read.get(transaction or "")
    version = found.transaction.version if found else None
    return DatasetFacts(
        name=name,
        branch=branch,
        transaction=transaction,
        content=version.content_id if version else None,
        location=version.location if version and _is_table(version.location) else None,
        fields=found.fields() if found else (),
    )


def _is_table(location: str) -> bool:
    """A tree of files is located by a digest, a table by its metadata file."""
    return ".metadata.json" in location


def _fields(metadata: Mapping[str, Any]) -> Iterator[Field]:
    current = metadata.get("current-schema-id")
    for schema in metadata.get("schemas") or ():
        if schema.get("schema-id") == current:
            for field in schema["fields"]:
                type = field["type"] if isinstance(field["type"], str) else field["type"]["type"]
                yield Field(name=field["name"], type=type, doc=field.get("doc"))


def _run_id(happening: JobHappening) -> str:
    epoch = happening.attempt.epoch if happening.attempt else "adopted"
    return _id(f"build {happening.build} job {happening.position} attempt {epoch}")


def _id(text: str) -> str:
    return str(uuid.uuid5(_IDS, text))


_log = logging.getLogger(__name__)

# How long the end of a process waits for what has not been sent.
_CLOSE_SECONDS = 5.0
_SEND_SECONDS = 2.0
# A receiver that is away must not make a long build remember all it did.
_WAITING = 10_000


class Lineage:
    """Hears what happened to jobs, looks up what they read and wrote, and sends it in order."""

    def __init__(
        self, settings: LineageSettings, database: Database, tables: TableVersions
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._queue: queue.Queue[JobHappening | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._transport: Any = None
        self._warned = False

    def hear(self, happening: JobHappening) -> None:
        """Returns at once, whatever becomes of it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="lineage", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(happening)
        except queue.Full:
            self._warn(f"more than {_WAITING} events wait to be sent")

    def close(self) -> None:
        """Waits a little for what has not been sent yet, then lets go of it."""
        if self._thread is None:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn(f"{self._queue.qsize()} events were not sent in time")

    def _send_all(self) -> None:
        while (happening := self._queue.get()) is not None:
            # Whatever goes wrong, on the way or in a library, is no reason for a build to fail.
            try:
                self._send(happening)
            except Exception as error:
                self._warn(str(error) or type(error).__name__)

    def _send(self, happening: JobHappening) -> None:
        try:
            from headgate.lineage import openlineage  # noqa: PLC0415  (optional, and slow)
        except ImportError:
            self._warn("its client is not installed: pip install 'headgate[lineage]'")
            return
        if self._transport is None:
            self._transport = openlineage.open_transport(
                self._settings, timeout_seconds=_SEND_SECONDS
            )
        facts = facts_of(happening, self._read(happening))
        self._transport.emit(openlineage.run_event(facts, self._settings.namespace))

    def _read(self, happening: JobHappening) -> dict[str, Read]:
        """Every transaction that the job read or wrote, with its schema; by transaction."""
        ids = [*_transactions(happening.inputs), *happening.outputs.values()]
        found = self._database.read(lambda c: load_transactions(c, map(TransactionId, ids)))
        return {
            id: Read(transaction=transaction, tables=self._tables)
            for id, transaction in found.items()
        }

    def _warn(self, why: str) -> None:
        """Says it once: the next event fails for the same reason."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "OpenLineage events for %s are lost: %s. The data is not affected.",
                self._settings.url,
                why,
            )


def _transactions(inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [given["transaction"] for given in inputs if given["transaction"]]
