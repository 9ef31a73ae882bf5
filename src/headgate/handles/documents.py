"""What is recorded of JobSpecs, builds, tokens and histories, as every entrance shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.catalog.builds import BuildRecord
from headgate.catalog.jobspecs import PublishedJobSpec
from headgate.catalog.tokens import TokenRecord
from headgate.handles.nouns import Json, transaction_json
from headgate.model.instants import instant_text
from headgate.model.nouns import Transaction


def jobspec_json(spec: PublishedJobSpec) -> Json:
    """A JobSpec, or the mark that it was removed."""
    data: Json = {
        "jobspec": spec.id,
        "branch": spec.branch,
        "outputs": spec.body["outputs"],
        "removed": spec.removed,
        "repository": spec.repository,
        "commit": spec.commit,
        "clean": spec.clean,
        "actor": spec.actor,
        "published_at": instant_text(spec.published_at),
    }
    if not spec.removed:
        body = spec.body["jobspec"]
        declared = body["declaration"]
        data |= {
            "inputs": [given["dataset"] for given in declared["inputs"]],
            "entry": f"{declared['module']}.{declared['function']}",
            "bundle": body["bundle"],
            "logic_hash": body["logic_hash"],
        }
    return data


def build_json(build: BuildRecord) -> Json:
    """A build without its jobs."""
    return {
        "build": build.id,
        "branch": build.branch,
        "fallback": build.body["fallback"],
        "targets": build.body["targets"],
        "state": build.state,
        "actor": build.actor,
        "started_at": instant_text(build.started_at),
        "ended_at": instant_text(build.ended_at) if build.ended_at is not None else None,
    }


def build_with_jobs_json(build: BuildRecord) -> Json:
    """A build and how each of its jobs is doing."""
    return build_json(build) | {"jobs": [dict(job.body) for job in build.jobs]}


def token_json(record: TokenRecord) -> Json:
    """What a token stands for; never the token."""
    return {
        "id": record.id,
        "actor": record.grant.actor,
        "role": record.grant.role.value,
        "branches": list(record.grant.branches),
        "created_by": record.created_by,
        "created_at": instant_text(record.created_at),
        "expires_at": instant_text(record.expires_at) if record.expires_at else None,
        "revoked_at": instant_text(record.revoked_at) if record.revoked_at else None,
    }


def history_json(transaction: Transaction) -> Json:
    """The transaction, its number in the history, and what its build found."""
    facts = transaction.provenance
    return {
        **transaction_json(transaction),
        "number": transaction.depth + 1,
        "build": facts.get("build"),
        "adopted_from": facts.get("adopted_from"),
        "incremental": _without_snapshots(facts.get("incremental")),
        "checks": list(facts.get("checks") or ()),
    }


def _without_snapshots(incremental: Mapping[str, Any] | None) -> Json | None:
    if incremental is None:
        return None
    return {name: value for name, value in incremental.items() if name != "snapshots"}
