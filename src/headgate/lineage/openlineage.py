"""OpenLineage events and transport, in the classes of OpenLineage's client."""

import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

from headgate.builds.attempt import JobEvent, JobEventType
from headgate.model.ids import TransactionId
from headgate.model.nouns import Transaction, Version
from headgate.settings import LineageSettings
from headgate.tables.versions import TableVersions

_PRODUCER = f"urn:headgate:{metadata.version('headgate')}"
_FACET = "headgate"
_SCHEMA = "urn:headgate:facet:1"
# Run ids derive from build ids, so that all events of one attempt have the same.
_IDS = uuid.UUID("5f0c9c1e-6d0e-4a8b-9f43-7b3f0f7f2d11")
# A single retry: the end of a build waits for the sender's thread.
_RETRIES = {"total": 1, "connect": 1, "read": 0, "backoff_factor": 0.1}


def open_transport(settings: LineageSettings, *, timeout_seconds: float) -> Any:
    """Return the client's transport with all options set, so that it reads no environment."""
    more = {"auth": ApiKeyTokenProvider({"apiKey": settings.api_key})} if settings.api_key else {}
    return HttpTransport(
        HttpConfig(
            url=settings.url,
            endpoint=settings.endpoint,
            timeout=timeout_seconds,
            retry=_RETRIES,
            **more,
        )
    )


def run_event(
    event: JobEvent,
    transactions: Mapping[TransactionId, Transaction],
    tables: TableVersions,
    namespace: str,
) -> Any:
    """Return the event of one attempt; its parent run is the build.

    `transactions` are those that the job read or wrote; the schemas of their tables are read here.
    """
    complete = event.type is JobEventType.COMPLETE
    epoch = event.attempt.epoch if event.attempt else "adopted"

    def facets(branch: str, id: str | None, *, readable: bool = True) -> dict[str, Any]:
        found = transactions.get(TransactionId(id)) if id and readable else None
        return _dataset_facets(branch, id, found.version if found else None, tables)

    statistics = {}
    # Rows are counted by job, so they are known only of a single output.
    if complete and event.attempt and len(event.outputs) == 1:
        statistics["outputStatistics"] = (
            facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=event.rows, producer=_PRODUCER
            )
        )
    return RunEvent(
        eventType=RunState[event.type.value],
        eventTime=event.at.isoformat(),
        producer=_PRODUCER,
        run=Run(
            runId=_id(f"build {event.build} job {event.position} attempt {epoch}"),
            facets=_run_facets(event, namespace),
        ),
        job=Job(namespace=namespace, name=event.decision.job.spec.title, facets=_job_facets(event)),
        inputs=[
            InputDataset(
                namespace=namespace,
                name=given["dataset"],
                facets=facets(given["branch"], given["transaction"]),
            )
            for given in event.inputs
        ],
        outputs=[
            OutputDataset(
                namespace=namespace,
                name=name,
                # Before it is complete, an output has a transaction, but no content.
                facets=facets(event.branch, id, readable=complete),
                outputFacets=statistics,
            )
            for name, id in event.outputs.items()
        ],
    )


def _run_facets(event: JobEvent, namespace: str) -> dict[str, Any]:
    candidate = event.decision.candidate
    facets: dict[str, Any] = {
        _FACET: _own(
            {
                "build": event.build,
                "branch": event.branch,
                "fallback": list(event.fallback),
                "actor": event.actor,
                "attempt": event.attempt.epoch if event.attempt else None,
                "taskKey": event.attempt.key if event.attempt else None,
                "transactions": dict(event.outputs),
                "reason": event.decision.reason.value,
                "jobspecBranch": event.decision.job.jobspec_branch,
                "adoptedFrom": candidate.branch if candidate else None,
                "sparkJobs": event.spark_jobs,
                "rows": event.rows,
            }
        ),
        "parent": facet_v2.parent_run.ParentRunFacet(
            run=facet_v2.parent_run.Run(runId=_id(f"build {event.build}")),
            job=facet_v2.parent_run.Job(namespace=namespace, name=f"build.{event.branch}"),
            producer=_PRODUCER,
        ),
        "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet(
            version=metadata.version("headgate"), name="headgate", producer=_PRODUCER
        ),
    }
    if event.error is not None and event.type is JobEventType.FAIL:
        facets["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(
            message=str(event.error.get("message", "failed")),
            programmingLanguage="PYTHON",
            stackTrace=event.error.get("traceback"),
            producer=_PRODUCER,
        )
    return facets


def _job_facets(event: JobEvent) -> dict[str, Any]:
    spec = event.decision.job.spec
    repository = spec.source.repository
    return {
        "jobType": facet_v2.job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="HEADGATE", jobType="JOB", producer=_PRODUCER
        ),
        "sourceCodeLocation": facet_v2.source_code_location_job.SourceCodeLocationJobFacet(
            type="git",
            url=repository if "://" in repository else f"urn:headgate:repository:{repository}",
            version=spec.source.commit,
            path=spec.declaration.file,
            producer=_PRODUCER,
        ),
    }


def _dataset_facets(
    branch: str, transaction: str | None, version: Version | None, tables: TableVersions
) -> dict[str, Any]:
    # A tree of files is located by a digest, a table by its metadata file.
    is_table = version is not None and ".metadata.json" in version.location
    facets: dict[str, Any] = {
        _FACET: _own(
            {
                "branch": branch,
                "transaction": transaction,
                "contentId": version.content_id if version else None,
                "location": version.location if version and is_table else None,
            }
        )
    }
    if transaction is not None:
        facets["version"] = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=transaction, producer=_PRODUCER
        )
    fields = list(_fields(tables.read(version.location).metadata)) if version and is_table else []
    if fields:
        facets["schema"] = facet_v2.schema_dataset.SchemaDatasetFacet(
            fields=fields, producer=_PRODUCER
        )
    return facets


def _fields(metadata: Mapping[str, Any]) -> Iterator[Any]:
    current = metadata.get("current-schema-id")
    for schema in metadata.get("schemas") or ():
        if schema.get("schema-id") == current:
            for field in schema["fields"]:
                type = field["type"] if isinstance(field["type"], str) else field["type"]["type"]
                yield facet_v2.schema_dataset.SchemaDatasetFacetFields(
                    name=field["name"], type=type, description=field.get("doc")
                )


def _own(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a facet of Headgate's own schema."""
    return {"_producer": _PRODUCER, "_schemaURL": _SCHEMA, **content}


def _id(text: str) -> str:
    return str(uuid.uuid5(_IDS, text))
