"""The demo's zombie: a live Spark session whose attempt somebody has given up."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from headgate.attempts.committing import CommitOptions, commit_transactions
from headgate.catalog.attempts import dispatch_attempt, equip_attempt
from headgate.catalog.find import load_branch, load_dataset
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.endpoint.authorizing import job_id
from headgate.errors import AttemptSuperseded, StatementFailed, WorkFailed
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import TransactionType
from headgate.spark.conf import catalog_conf
from headgate.spark.session import bind_catalog
from headgate.spark.sql import run_sql
from headgate.store import Store

_KEY = "nightly"
_LEASE_SECONDS = 60
_MASTER = "master"


class Zombie:
    """An attempt with an open transaction, and a session that can write nothing else."""

    def __init__(self, hg: Store, dataset: str) -> None:
        self._hg = hg
        self._dataset = dataset
        self._attempt = dispatch_attempt(
            hg.database, _KEY, actor="first driver", lease_seconds=_LEASE_SECONDS
        ).ref
        name = parse_dataset_name(dataset)
        branch = hg.database.read(lambda c: load_branch(c, load_dataset(c, name), _MASTER))
        [self._transaction] = open_transactions(
            hg.database,
            [Opening(branch=branch.id, type=TransactionType.UPDATE)],
            Opener(actor="first driver", lease_seconds=_LEASE_SECONDS, attempt=self._attempt),
        )
        token = secrets.token_urlsafe(32)
        outputs = {dataset: self._transaction.id}
        scope = {"branch": _MASTER, "inputs": {}, "outputs": outputs}
        equip_attempt(hg.database, self._attempt, token=token, scope=scope)
        conf = catalog_conf(
            uri=hg.build_parts.workplace.url,
            warehouse=f"job:{job_id(self._attempt.key, self._attempt.epoch)}",
            token=token,
        )
        self._session = bind_catalog(hg.spark(_MASTER), conf)

    def write(self, region: str, total: int) -> None:
        """Adds a row to what the attempt is about to publish."""
        run_sql(self._session, f"insert into {self._dataset} values ('{region}', {total})")

    def supersede(self) -> None:
        """A newer attempt of the same work begins."""
        dispatch_attempt(
            self._hg.database, _KEY, actor="second driver", lease_seconds=_LEASE_SECONDS
        )

    def go_on(self) -> Iterator[tuple[str, str]]:
        """What the old attempt tries, and what it is told; it must be told no."""
        try:
            self.write("west", -1)
        except (AttemptSuperseded, StatementFailed) as refused:
            yield "its next row, written by Spark:", refused.message
        else:
            raise WorkFailed("the zombie could write; that must never happen.")
        options = CommitOptions(actor="first driver", attempt=self._attempt)
        try:
            commit_transactions(
                self._hg.database, self._hg.contents, [self._transaction.id], options
            )
        except AttemptSuperseded as refused:
            yield "its commit:", refused.message
        else:
            raise WorkFailed("the zombie was let in; that must never happen.")
