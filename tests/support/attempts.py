"""A job's attempt without a build: dispatched, with OPEN outputs and a token."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.attempts import CommitOptions, commit_transactions
from headgate.catalog.attempts import dispatch_attempt, set_attempt_scope
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.iceberg.service import job_id
from headgate.model.changes import Caller, Receipt
from headgate.model.ids import TransactionId
from headgate.model.nouns import AttemptRef, TransactionType
from headgate.store.embedded import Store

_LEASE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class JobOnMaster:
    """One attempt of a job whose outputs are on master."""

    store: Store
    ref: AttemptRef
    token: str
    outputs: Mapping[str, TransactionId]

    @property
    def context(self) -> str:
        return f"job:{job_id(self.ref.key, self.ref.epoch)}"

    def commit(self) -> Receipt:
        """Publish the outputs."""
        options = CommitOptions(caller=Caller(actor="builder", attempt=self.ref))
        ids = list(self.outputs.values())
        return commit_transactions(self.store.database, self.store.contents, ids, options)


def dispatch_job(
    store: Store, key: str, *, inputs: tuple[str, ...] = (), outputs: tuple[str, ...]
) -> JobOnMaster:
    """Dispatch a new attempt of a key that reads the views of master, and open its outputs."""
    attempt = dispatch_attempt(
        store.database, key, actor="builder", lease_seconds=_LEASE_SECONDS
    ).ref
    opened = open_transactions(
        store.database,
        [
            Opening(
                branch=store.dataset(name).branch("master").load().id,
                type=TransactionType.SNAPSHOT,
            )
            for name in outputs
        ],
        Opener(caller=Caller(actor="builder", attempt=attempt), lease_seconds=_LEASE_SECONDS),
    )
    token = secrets.token_urlsafe(16)
    views = {name: store.dataset(name).branch("master").load().view for name in inputs}
    scope = {
        "branch": "master",
        "inputs": {name: {"branch": "master", "transaction": view} for name, view in views.items()},
        "outputs": {str(one.dataset): one.id for one in opened},
    }
    set_attempt_scope(store.database, attempt, token=token, scope=scope)
    return JobOnMaster(
        store=store,
        ref=attempt,
        token=token,
        outputs={str(one.dataset): one.id for one in opened},
    )
