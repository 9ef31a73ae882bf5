"""What a built transaction says of itself, for people and for later builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.model.changes import Provenance
from headgate.model.freshness import Decision
from headgate.model.ids import BuildId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction

# Who says that the code was what computed it. Where the store's own side did, nobody has to.
ON_WORD_OF = "on_word_of"


def provenance_of(
    build: BuildId,
    decision: Decision,
    inputs: Sequence[Mapping[str, Any]],
    *,
    adopted_from: Transaction | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
    snapshots: Mapping[str, int] | None = None,
    on_word_of: str | None = None,
) -> Provenance:
    """What a built transaction says of itself; freshness and adoption compare its keys."""
    made_from = decision.made_from
    assert made_from is not None, "a job is committed only once all its inputs are known"
    source = decision.job.spec.source
    facts: dict[str, Any] = {
        "build": build,
        "job": decision.job.spec.title,
        "jobspec_branch": decision.job.jobspec_branch,
        "commit": source.commit,
        "clean": source.clean,
        "fingerprint": made_from.to_json(),
        "inputs": list(inputs),
    }
    if adopted_from is not None:
        facts["adopted_from"] = {
            "transaction": adopted_from.id,
            "branch": adopted_from.branch,
        }
        on_word_of = adopted_from.provenance.get(ON_WORD_OF)
    if on_word_of is not None:
        facts[ON_WORD_OF] = on_word_of
    if decision.incremental is not None:
        facts["incremental"] = {
            **decision.incremental.to_json(),
            "snapshots": dict(snapshots or {}),
        }
    if checks:
        facts["checks"] = list(checks)
    return Provenance(
        inputs_key=made_from.inputs_key,
        build_key=made_from.build_key,
        adoptable=source.clean,
        facts=facts,
    )


def pins_of(
    decision: Decision, new: Mapping[DatasetName, TransactionId]
) -> list[dict[str, str | None]]:
    """What an adopted job reads: views as planned, or what this very build adopts."""
    return [
        {
            "dataset": str(given.dataset),
            "branch": given.branch,
            "transaction": given.transaction or new.get(given.dataset),
        }
        for given in decision.inputs
    ]
