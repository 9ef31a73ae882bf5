"""JobSpecs that a client found in its repository, sent to a server with their code."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headgate.builds.discovery import Discovery
from headgate.builds.publishing import Publishing
from headgate.catalog.jobspecs import PublishedJobSpec
from headgate.files.objects import Digest
from headgate.handles.nouns import Json
from headgate.handles.wire import to_instant
from headgate.model.ids import JobSpecId
from headgate.model.jobspecs import JobSpec
from headgate.remote.line import Line
from headgate.remote.objects import remote_contents


def send_discovery(line: Line, found: Discovery) -> Publishing:
    """Sends the code by its digest, then the JobSpecs that name it."""
    with tempfile.TemporaryDirectory(prefix="headgate-publish-") as directory:
        bundle = Path(directory) / "bundle.zip"
        bundle.write_bytes(found.bundle.data)
        remote_contents(line).put_file(Digest(found.bundle.digest), bundle)
    specs = [
        {"declaration": spec.declaration.to_json(), "logic_hash": spec.logic_hash}
        for spec in found.jobspecs
    ]
    done = line.post(
        "/jobspecs", source=found.source.to_json(), bundle=found.bundle.digest, jobspecs=specs
    )
    sent = {tuple(_outputs(spec)): spec for spec in found.jobspecs}
    return Publishing(
        source=found.source,
        published=tuple(_published(one, sent[tuple(one["outputs"])]) for one in done["published"]),
        removed=tuple(done["removed"]),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )


def _published(noun: Json, spec: JobSpec) -> PublishedJobSpec:
    """The JobSpec that was sent, with what the server wrote down beside it."""
    return PublishedJobSpec(
        id=JobSpecId(noun["jobspec"]),
        branch=noun["branch"],
        repository=noun["repository"],
        commit=noun["commit"],
        clean=noun["clean"],
        removed=False,
        actor=noun["actor"],
        published_at=to_instant(noun["published_at"]),
        body={"outputs": _outputs(spec), "jobspec": spec.to_json()},
    )


def _outputs(spec: JobSpec) -> list[str]:
    return [str(output.dataset) for output in spec.outputs]
