"""The end of an atomic build: everything it made and adopted becomes visible at once."""

from __future__ import annotations

from headgate.attempts.committing import CommitOptions, commit_transactions
from headgate.builds.ledger import Ledger
from headgate.catalog.find import load_transactions


def publish_staged(ledger: Ledger) -> None:
    """One publication, with the build's own attempt; raises and shows nothing where refused."""
    opened, ids = ledger.opened, list(ledger.staged)
    if not ids and not opened.adoptions:
        return
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        ids,
        CommitOptions(
            actor=ledger.actor,
            attempt=opened.attempt,
            may_write_protected=opened.may_write_protected,
            provenance=ledger.staged,
            natural=ledger.natural,
        ),
        together_with=opened.adoptions,
    )
    found = ledger.parts.database.read(lambda c: load_transactions(c, ids))
    ledger.note_made({t.dataset: t for t in found.values()}, receipt.publication)
