"""What an event says, before it is put into anybody's classes; pure but for reading a schema."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headgate.builds.happening import Happened, JobHappening
from headgate.model.nouns import Transaction
from headgate.tables.versions import TableVersions

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
