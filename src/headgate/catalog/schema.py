"""The tables of the catalog; all migrations together must produce this schema.

The schema is portable on purpose: text, big integers, no generated keys, JSON as text. Instants
are microseconds since 1970 by the database's clock.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()


def _index_where(name: str, column: str, rows: str) -> Index:
    """Return a partial index, for both databases."""
    return Index(name, column, sqlite_where=text(rows), postgresql_where=text(rows))


store = Table(
    "store",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# One row. Every publication locks it last, which orders all publications.
log_counter = Table(
    "log_counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("properties", Text, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("owned", Integer, nullable=False),
    Column("repository", Text),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("namespace", "name", name="datasets_by_name"),
)

branches = Table(
    "branches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("parent_id", Text),
    Column("head_id", Text),
    Column("view_id", Text),
    Column("remembered_chain", Text),
    Column("made_for", Text),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("dataset_id", "name", name="branches_by_name"),
    Index("branches_by_parent", "parent_id"),
    Index("branches_by_head", "head_id"),
    Index("branches_by_view", "view_id"),
    _index_where("branches_unused", "made_for", "head_id IS NULL AND made_for IS NOT NULL"),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset_id", Text, nullable=False),
    Column("location", Text, nullable=False),
    Column("content_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("condemned_at", BigInteger),
    Index("versions_by_location", "location"),
    Index("versions_by_dataset", "dataset_id"),
)

transactions = Table(
    "transactions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("branch_name", Text, nullable=False),
    Column("parent_id", Text),
    Column("depth", BigInteger, nullable=False),
    Column("jump_id", Text),
    Column("type", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("version_id", Text),
    Column("actor", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Column("lease_seconds", BigInteger),
    Column("lease_until", BigInteger),
    Column("attempt_key", Text),
    Column("attempt_epoch", BigInteger),
    Column("unit_id", Text),
    Column("publication", BigInteger),
    Column("inputs_key", Text),
    Column("build_key", Text),
    # 1 if a build of a clean commit made it and no reset or replacement removed it.
    Column("adoptable", Integer, nullable=False),
    Column("provenance", Text, nullable=False),
    Index("transactions_by_branch", "branch_id", "opened_at"),
    Index("transactions_by_version", "version_id"),
    _index_where("transactions_by_unit", "unit_id", "unit_id IS NOT NULL"),
    _index_where("transactions_open", "lease_until", "state = 'OPEN'"),
    _index_where("transactions_by_attempt", "attempt_key", "state = 'OPEN'"),
    _index_where("transactions_by_build_key", "build_key", "adoptable = 1"),
)

# Stored objects that an OPEN transaction reuses; the door rejects condemned ones.
working_objects = Table(
    "working_objects",
    metadata,
    Column("transaction_id", Text, primary_key=True),
    Column("location", Text, primary_key=True),
)

condemned_objects = Table(
    "condemned_objects",
    metadata,
    Column("location", Text, primary_key=True),
    Column("condemned_at", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

publications = Table(
    "publications",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("operation_id", Text, nullable=False),
    Index("publications_by_actor", "actor", "number"),
    Index("publications_by_operation", "operation_id"),
    Index("publications_by_time", "at"),
    Index("publications_by_kind", "kind", "number"),
)

moves = Table(
    "moves",
    metadata,
    Column("publication", BigInteger, primary_key=True, autoincrement=False),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("dataset_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("branch_name", Text, nullable=False),
    Column("from_id", Text),
    Column("to_id", Text),
    # Change of the branch itself: created, moved or deleted.
    Column("change", Text, nullable=False),
    Index("moves_by_branch_name", "dataset_id", "branch_name", "publication"),
    Index("moves_by_branch", "branch_id", "publication"),
    Index("moves_by_dataset", "dataset_id", "publication"),
    Index("moves_by_name", "branch_name", "publication"),
)

tags = Table(
    "tags",
    metadata,
    Column("dataset_id", Text, ForeignKey("datasets.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("transaction_id", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("tags_by_transaction", "transaction_id"),
)

protected_branches = Table(
    "protected_branches",
    metadata,
    Column("name", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

units = Table(
    "units",
    metadata,
    Column("id", Text, primary_key=True),
    Column("branch_name", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("lease_seconds", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
)

# Newest epoch of each task key: the only one that may stage or publish.
task_keys = Table(
    "task_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("lease_seconds", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("token_digest", Text),
    # Attempt of the build that the job belongs to: superseding it supersedes this one.
    Column("parent_key", Text),
    Column("parent_epoch", BigInteger),
    Column("scope", Text, nullable=False),
    _index_where("attempts_by_parent", "parent_key", "parent_key IS NOT NULL"),
    _index_where("attempts_by_token", "token_digest", "token_digest IS NOT NULL"),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("publication", BigInteger),
    Column("receipt", Text),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("principal", "kind", "branch", "key", name="operations_by_key"),
    Index("operations_by_time", "at"),
)

# Publications to lakeFS that are not recorded yet: see `headgate.catalog.workspaces`.
intents = Table(
    "intents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("operation_id", Text, nullable=False),
    # `kind` is always "workspace", `phase` always "A"; removing them takes a migration.
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("lease_seconds", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Unused: an intent holds no branch of a dataset. The table stays, since removing it takes a
# migration.
intent_branches = Table(
    "intent_branches",
    metadata,
    Column("intent_id", Text, primary_key=True),
    Column("branch_id", Text, primary_key=True),
    Index("intent_branches_by_branch", "branch_id"),
)

# Audit of recovery: one row for each operation or transaction that it settled.
recoveries = Table(
    "recoveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("original_actor", Text, nullable=False),
    Column("operation_id", Text, nullable=False),
    # Always NULL, since recovery publishes nothing; removing the column takes a migration.
    Column("publication", BigInteger),
    Column("outcomes", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("recoveries_by_operation", "operation_id"),
)

# Recorded changes that are not publications: opening, abort, takeover, protection.
events = Table(
    "events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("dataset_id", Text),
    Column("branch_name", Text),
    Column("transaction_id", Text),
    Column("detail", Text, nullable=False),
    Index("events_by_time", "at"),
    Index("events_by_actor", "actor", "at"),
)

jobspecs = Table(
    "jobspecs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("branch", Text, nullable=False),
    Column("repository", Text, nullable=False),
    Column("commit_id", Text, nullable=False),
    Column("clean", Integer, nullable=False),
    Column("removed", Integer, nullable=False),
    Column("actor", Text, nullable=False),
    Column("published_at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

# The JobSpec that produces a dataset, by the branch name under which it is published.
jobspec_outputs = Table(
    "jobspec_outputs",
    metadata,
    Column("branch", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("jobspec_id", Text, nullable=False),
    Index("jobspec_outputs_by_dataset", "dataset"),
)

builds = Table(
    "builds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("branch", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("attempt_key", Text, nullable=False),
    Column("attempt_epoch", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Index("builds_by_time", "started_at"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("build_id", Text, ForeignKey("builds.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("body", Text, nullable=False),
)

# A token is shown once, when it is created; only its digest is stored.
tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("branches", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    UniqueConstraint("digest", name="tokens_by_digest"),
)
