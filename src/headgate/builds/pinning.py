"""What a job reads: every input pinned to one transaction before its first attempt."""

from __future__ import annotations

from dataclasses import replace

from headgate.builds.attempting import JobWork, Pinned
from headgate.builds.extents import settle_extent
from headgate.builds.ledger import Ledger
from headgate.builds.plan import first_view
from headgate.catalog.find import find_datasets
from headgate.errors import InputNotFound
from headgate.model.fingerprints import fingerprint
from headgate.model.freshness import PlannedInput
from headgate.model.ids import ContentId, TransactionId


def prepare_work(ledger: Ledger, position: int) -> JobWork:
    """Pins every input: what was planned, or what this build has made meanwhile."""
    decision, request = ledger.opened.plan.decisions[position], ledger.opened.plan.request
    kinds = ledger.parts.database.read(
        lambda c: find_datasets(c, [given.dataset for given in decision.inputs])
    )
    pins: dict[str, Pinned] = {}
    contents: dict[str, ContentId] = {}
    for given in decision.inputs:
        branch, id, content = _read_at(ledger, given)
        if id is None or content is None:
            raise InputNotFound(
                dataset=str(given.dataset), where=branch, needed_by=decision.job.spec.title
            )
        contents[given.name] = content
        pins[given.name] = Pinned(
            dataset=given.dataset, branch=branch, transaction=id, kind=kinds[given.dataset].kind
        )
    ledger.reports[position].inputs = [
        {"dataset": str(p.dataset), "branch": p.branch, "transaction": p.transaction}
        for p in pins.values()
    ]
    made_from = decision.made_from or fingerprint(
        decision.job.spec,
        parameters=request.parameters,
        environment=request.environment,
        inputs=contents,
    )
    settled, snapshots = settle_extent(
        ledger, position, replace(decision, made_from=made_from), pins
    )
    ledger.reports[position].decision = settled
    attempt = ledger.attempt(position)
    return JobWork(
        decision=settled,
        attempt=attempt,
        inputs=pins,
        snapshots=snapshots,
        outputs=ledger.opened.transactions[position],
        branch=request.branch,
        fallback=request.fallback,
        parameters=request.parameters,
        directory=ledger.directory_of(attempt),
    )


def _read_at(
    ledger: Ledger, given: PlannedInput
) -> tuple[str, TransactionId | None, ContentId | None]:
    """Branch, transaction and content of an input."""
    if given.made_by is None:
        return given.branch, given.transaction, given.content
    made = ledger.find_made(given.dataset)
    if made is not None:
        branch = ledger.opened.plan.request.branch
        return branch, made.id, made.version.content_id if made.version else None
    # The job that should have made it asked to publish nothing: what was there still counts.
    chain = ledger.opened.plan.request.chain
    view = ledger.parts.database.read(lambda c: first_view(c, given.dataset, chain))
    if view is None:
        return " > ".join(chain), None, None
    return view.branch, view.transaction, view.content
