"""Events in the classes of OpenLineage's own client, and the way that they are sent."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    source_code_location_job,
)
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

from headgate.lineage.events import DatasetFacts, EventFacts
from headgate.settings import LineageSettings

_PRODUCER = f"urn:headgate:{metadata.version('headgate')}"
_FACET = "headgate"
_SCHEMA = "urn:headgate:facet:1"
# One more try than none: the sender's thread is in no hurry, and the end of a build is.
_RETRIES = {"total": 1, "connect": 1, "read": 0, "backoff_factor": 0.1}


def open_transport(settings: LineageSettings, *, timeout_seconds: float) -> Any:
    """The client's transport, told everything: it is not to look into the environment itself."""
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


def run_event(facts: EventFacts, namespace: str) -> Any:
    """One event of one attempt; the build is its parent."""
    return RunEvent(
        eventType=RunState[facts.what.value],
        eventTime=facts.at.isoformat(),
        producer=_PRODUCER,
        run=Run(runId=facts.run, facets=_run_facets(facts, namespace)),
        job=Job(namespace=namespace, name=facts.job, facets=_job_facets(facts)),
        inputs=[
            InputDataset(namespace=namespace, name=given.name, facets=_dataset_facets(given))
            for given in facts.inputs
        ],
        outputs=[_output(made, namespace) for made in facts.outputs],
    )


def _run_facets(facts: EventFacts, namespace: str) -> dict[str, Any]:
    facets: dict[str, Any] = {
        _FACET: _own(facts.facet),
        "parent": parent_run.ParentRunFacet(
            run=parent_run.Run(runId=facts.parent),
            job=parent_run.Job(namespace=namespace, name=facts.parent_job),
            producer=_PRODUCER,
        ),
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=metadata.version("headgate"), name="headgate", producer=_PRODUCER
        ),
    }
    if facts.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=str(facts.error.get("message", "failed")),
            programmingLanguage="PYTHON",
            stackTrace=facts.error.get("traceback"),
            producer=_PRODUCER,
        )
    return facets


def _job_facets(facts: EventFacts) -> dict[str, Any]:
    return {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="HEADGATE", jobType="JOB", producer=_PRODUCER
        ),
        "sourceCodeLocation": source_code_location_job.SourceCodeLocationJobFacet(
            type="git",
            url=_as_uri(str(facts.source["repository"])),
            version=facts.source["commit"],
            path=facts.source["file"],
            producer=_PRODUCER,
        ),
    }


def _output(made: DatasetFacts, namespace: str) -> Any:
    facets = {}
    if made.rows is not None:
        facets["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=made.rows, producer=_PRODUCER
            )
        )
    return OutputDataset(
        namespace=namespace, name=made.name, facets=_dataset_facets(made), outputFacets=facets
    )


def _dataset_facets(facts: DatasetFacts) -> dict[str, Any]:
    facets: dict[str, Any] = {
        _FACET: _own(
            {
                "branch": facts.branch,
                "transaction": facts.transaction,
                "contentId": facts.content,
                "location": facts.location,
            }
        )
    }
    if facts.transaction is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=facts.transaction, producer=_PRODUCER
        )
    if facts.fields:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(
            fields=[
                schema_dataset.SchemaDatasetFacetFields(
                    name=field.name, type=field.type, description=field.doc
                )
                for field in facts.fields
            ],
            producer=_PRODUCER,
        )
    return facets


def _own(content: Any) -> dict[str, Any]:
    """A facet that only Headgate has."""
    return {"_producer": _PRODUCER, "_schemaURL": _SCHEMA, **content}


def _as_uri(repository: str) -> str:
    return repository if "://" in repository else f"urn:headgate:repository:{repository}"
