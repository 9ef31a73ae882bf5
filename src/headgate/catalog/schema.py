"""The tables of the catalog; all migrations together must produce this schema.

The schema is portable on purpose: text, big integers, no generated keys, JSON as text. Instants
are microseconds since 1970 by the database's clock.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()


def _index_where(name: str, column: str, rows: str) -> sa.Index:
    """Return a partial index; the migrations create it on both databases."""
    return sa.Index(name, column, sqlite_where=sa.text(rows))


store = sa.Table(
    "store",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

# One row. Every publication locks it last, which orders all publications.
log_counter = sa.Table(
    "log_counter",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("last_at", sa.BigInteger, nullable=False),
)

namespaces = sa.Table(
    "namespaces",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("properties", sa.Text, nullable=False),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("owned", sa.Integer, nullable=False),
    sa.Column("repository", sa.Text),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("namespace", "name", name="datasets_by_name"),
)

branches = sa.Table(
    "branches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, sa.ForeignKey("datasets.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("parent_id", sa.Text),
    sa.Column("head_id", sa.Text),
    sa.Column("view_id", sa.Text),
    sa.Column("remembered_chain", sa.Text),
    sa.Column("made_for", sa.Text),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    # The parent that a user named, which may be deleted; `parent_id` is then the next one above.
    sa.Column("declared_parent_id", sa.Text),
    sa.UniqueConstraint("dataset_id", "name", name="branches_by_name"),
    sa.Index("branches_by_parent", "parent_id"),
    sa.Index("branches_by_head", "head_id"),
    sa.Index("branches_by_view", "view_id"),
    sa.Index("branches_by_plain_name", "name"),
    _index_where("branches_unused", "made_for", "head_id IS NULL AND made_for IS NOT NULL"),
)

# Deleted branches that `branch restore` can bring back, with the publication that deleted them.
deleted_branches = sa.Table(
    "deleted_branches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("declared_parent_id", sa.Text),
    sa.Column("view_id", sa.Text),
    sa.Column("remembered_chain", sa.Text),
    sa.Column("publication", sa.BigInteger, nullable=False),
    sa.Index("deleted_branches_by_name", "name", "dataset_id"),
)

versions = sa.Table(
    "versions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("condemned_at", sa.BigInteger),
    sa.Index("versions_by_location", "location"),
    sa.Index("versions_by_dataset", "dataset_id"),
)

transactions = sa.Table(
    "transactions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, sa.ForeignKey("datasets.id"), nullable=False),
    sa.Column("branch_id", sa.Text, nullable=False),
    sa.Column("branch_name", sa.Text, nullable=False),
    sa.Column("parent_id", sa.Text),
    sa.Column("depth", sa.BigInteger, nullable=False),
    sa.Column("jump_id", sa.Text),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version_id", sa.Text),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("lease_seconds", sa.BigInteger),
    sa.Column("lease_until", sa.BigInteger),
    sa.Column("attempt_key", sa.Text),
    sa.Column("attempt_epoch", sa.BigInteger),
    sa.Column("unit_id", sa.Text),
    sa.Column("publication", sa.BigInteger),
    sa.Column("inputs_key", sa.Text),
    sa.Column("build_key", sa.Text),
    # 1 if a build of a clean commit made it and no reset or replacement removed it.
    sa.Column("adoptable", sa.Integer, nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    # Of the first transaction under a new name: the one of the earlier name that it continues.
    sa.Column("renamed_from", sa.Text),
    sa.Index("transactions_by_branch", "branch_id", "opened_at"),
    sa.Index("transactions_by_version", "version_id"),
    _index_where("transactions_by_unit", "unit_id", "unit_id IS NOT NULL"),
    _index_where("transactions_open", "lease_until", "state = 'OPEN'"),
    _index_where("transactions_by_attempt", "attempt_key", "state = 'OPEN'"),
    _index_where("transactions_renamed", "dataset_id", "renamed_from IS NOT NULL"),
    _index_where("transactions_by_build_key", "build_key", "adoptable = 1"),
)

# Stored objects that an OPEN transaction reuses; the door rejects condemned ones.
working_objects = sa.Table(
    "working_objects",
    metadata,
    sa.Column("transaction_id", sa.Text, primary_key=True),
    sa.Column("location", sa.Text, primary_key=True),
)

condemned_objects = sa.Table(
    "condemned_objects",
    metadata,
    sa.Column("location", sa.Text, primary_key=True),
    sa.Column("condemned_at", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

publications = sa.Table(
    "publications",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("operation_id", sa.Text, nullable=False),
    sa.Index("publications_by_actor", "actor", "number"),
    sa.Index("publications_by_operation", "operation_id"),
    sa.Index("publications_by_time", "at"),
    sa.Index("publications_by_kind", "kind", "number"),
)

moves = sa.Table(
    "moves",
    metadata,
    sa.Column("publication", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("dataset_id", sa.Text, nullable=False),
    sa.Column("branch_id", sa.Text, nullable=False),
    sa.Column("branch_name", sa.Text, nullable=False),
    sa.Column("from_id", sa.Text),
    sa.Column("to_id", sa.Text),
    # Change of the branch itself: created, moved, deleted or restored.
    sa.Column("change", sa.Text, nullable=False),
    sa.Index("moves_by_branch_name", "dataset_id", "branch_name", "publication"),
    sa.Index("moves_by_branch", "branch_id", "publication"),
    sa.Index("moves_by_dataset", "dataset_id", "publication"),
    sa.Index("moves_by_name", "branch_name", "publication"),
)

# Results that a reset removed from a branch, by inputs key: builds there neither adopt nor compute
# them. The rows of a deleted branch stay, for the time that it can be restored.
holds = sa.Table(
    "holds",
    metadata,
    sa.Column("branch_id", sa.Text, primary_key=True),
    sa.Column("inputs_key", sa.Text, primary_key=True),
    # Of the newest such reset.
    sa.Column("publication", sa.BigInteger, nullable=False),
)

tags = sa.Table(
    "tags",
    metadata,
    sa.Column("dataset_id", sa.Text, sa.ForeignKey("datasets.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("transaction_id", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Index("tags_by_transaction", "transaction_id"),
)

protected_branches = sa.Table(
    "protected_branches",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    # Patterns, as JSON.
    sa.Column("datasets", sa.Text, nullable=False, server_default='["*"]'),
)

units = sa.Table(
    "units",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("branch_name", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("lease_seconds", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
)

# Newest epoch of each task key: the only one that may stage or publish.
task_keys = sa.Table(
    "task_keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("lease_seconds", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
    sa.Column("token_digest", sa.Text),
    # Attempt of the build that the job belongs to: superseding it supersedes this one.
    sa.Column("parent_key", sa.Text),
    sa.Column("parent_epoch", sa.BigInteger),
    sa.Column("scope", sa.Text, nullable=False),
    _index_where("attempts_by_parent", "parent_key", "parent_key IS NOT NULL"),
    _index_where("attempts_by_token", "token_digest", "token_digest IS NOT NULL"),
)

operations = sa.Table(
    "operations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("publication", sa.BigInteger),
    sa.Column("receipt", sa.Text),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("principal", "kind", "branch", "key", name="operations_by_key"),
    sa.Index("operations_by_time", "at"),
)

# Publications to lakeFS that are not recorded yet: see `headgate.catalog.workspaces`.
intents = sa.Table(
    "intents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("operation_id", sa.Text, nullable=False),
    # `kind` is always "workspace", `phase` always "A"; removing them takes a migration.
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_seconds", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)

# Unused: an intent holds no branch of a dataset. The table stays, since removing it takes a
# migration.
intent_branches = sa.Table(
    "intent_branches",
    metadata,
    sa.Column("intent_id", sa.Text, primary_key=True),
    sa.Column("branch_id", sa.Text, primary_key=True),
    sa.Index("intent_branches_by_branch", "branch_id"),
)

# Audit of recovery: one row for each operation or transaction that it settled.
recoveries = sa.Table(
    "recoveries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("original_actor", sa.Text, nullable=False),
    sa.Column("operation_id", sa.Text, nullable=False),
    # Always NULL, since recovery publishes nothing; removing the column takes a migration.
    sa.Column("publication", sa.BigInteger),
    sa.Column("outcomes", sa.Text, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Index("recoveries_by_operation", "operation_id"),
)

# Recorded changes that are not publications: opening, abort, takeover, protection.
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("dataset_id", sa.Text),
    sa.Column("branch_name", sa.Text),
    sa.Column("transaction_id", sa.Text),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index("events_by_time", "at"),
    sa.Index("events_by_actor", "actor", "at"),
)

jobspecs = sa.Table(
    "jobspecs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("commit_id", sa.Text, nullable=False),
    sa.Column("clean", sa.Integer, nullable=False),
    sa.Column("removed", sa.Integer, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("published_at", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

# The JobSpec that produces a dataset, by the branch name under which it is published.
jobspec_outputs = sa.Table(
    "jobspec_outputs",
    metadata,
    sa.Column("branch", sa.Text, primary_key=True),
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("jobspec_id", sa.Text, nullable=False),
    sa.Index("jobspec_outputs_by_dataset", "dataset"),
)

builds = sa.Table(
    "builds",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("attempt_key", sa.Text, nullable=False),
    sa.Column("attempt_epoch", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("builds_by_time", "started_at"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("build_id", sa.Text, sa.ForeignKey("builds.id"), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

# A token is shown once, when it is created; only its digest is stored.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("branches", sa.Text, nullable=False),
    sa.Column("reads", sa.Text, nullable=False, server_default='["*"]'),
    sa.Column("datasets", sa.Text, nullable=False, server_default='["*"]'),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("revoked_at", sa.BigInteger),
    sa.UniqueConstraint("digest", name="tokens_by_digest"),
)

# Places in the write queue of a branch; see `tickets.py`.
tickets = sa.Table(
    "tickets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("branch_id", sa.Text, primary_key=True),
    sa.Column("taken_at", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
    sa.Index("tickets_by_branch", "branch_id", "taken_at"),
)
