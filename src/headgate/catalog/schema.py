"""The tables of the catalog; all migrations together must produce this schema.

The schema is portable on purpose: text, big integers, no generated keys, JSON as text. Instants
are microseconds since 1970 by the database's clock. See ADR 0002.
"""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

metadata = sa.MetaData()


def table(
    name: str,
    *constraints: SchemaItem,
    key: str = "id",
    text: str = "",
    null_text: str = "",
    number: str = "",
    null_number: str = "",
    small: str = "",
    default: Mapping[str, str] = {},
) -> sa.Table:
    """Return a table, from the names of its columns by type.

    :param key: columns of the primary key; they are texts, unless `number` or `small` name them.
    :param null_text: columns of texts that may be NULL, as those of `null_number`.
    :param default: values that migrations gave to the rows there were.
    """
    numbers = {*number.split(), *small.split()}
    types = (
        (" ".join(part for part in key.split() if part not in numbers), sa.Text, False),
        (text, sa.Text, False),
        (null_text, sa.Text, True),
        (number, sa.BigInteger, False),
        (null_number, sa.BigInteger, True),
        (small, sa.Integer, False),
    )
    columns = [
        sa.Column(
            column, kind, nullable=is_null, autoincrement=False, server_default=default.get(column)
        )
        for named, kind, is_null in types
        for column in named.split()
    ]
    primary = sa.PrimaryKeyConstraint(*key.split())
    return sa.Table(name, metadata, *columns, primary, *constraints)


def _index_where(name: str, column: str, rows: str) -> sa.Index:
    """Return a partial index; the migrations create it on both databases."""
    return sa.Index(name, column, sqlite_where=sa.text(rows))


store = table("store", key="key", text="value")

# One row. Every publication locks it last, which orders all publications.
log_counter = table("log_counter", number="number last_at", small="id")

namespaces = table("namespaces", key="name", text="properties")

datasets = table(
    "datasets",
    sa.UniqueConstraint("namespace", "name", name="datasets_by_name"),
    text="namespace name kind",
    null_text="repository",
    number="created_at",
    small="owned",
)

branches = table(
    "branches",
    sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"]),
    sa.UniqueConstraint("dataset_id", "name", name="branches_by_name"),
    sa.Index("branches_by_parent", "parent_id"),
    sa.Index("branches_by_head", "head_id"),
    sa.Index("branches_by_view", "view_id"),
    sa.Index("branches_by_plain_name", "name"),
    _index_where("branches_unused", "made_for", "head_id IS NULL AND made_for IS NOT NULL"),
    text="dataset_id name",
    # `declared_parent_id` is the parent that a user named, which may be deleted; `parent_id` is
    # then the next one above.
    null_text="parent_id head_id view_id remembered_chain made_for declared_parent_id",
    number="created_at",
)

# Deleted branches that `branch restore` can bring back, with the publication that deleted them.
deleted_branches = table(
    "deleted_branches",
    sa.Index("deleted_branches_by_name", "name", "dataset_id"),
    text="dataset_id name",
    null_text="declared_parent_id view_id remembered_chain",
    number="publication",
)

versions = table(
    "versions",
    sa.Index("versions_by_location", "location"),
    sa.Index("versions_by_dataset", "dataset_id"),
    text="dataset_id location content_id",
    number="created_at",
    null_number="condemned_at",
)

transactions = table(
    "transactions",
    sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"]),
    sa.Index("transactions_by_branch", "branch_id", "opened_at"),
    sa.Index("transactions_by_version", "version_id"),
    _index_where("transactions_by_unit", "unit_id", "unit_id IS NOT NULL"),
    _index_where("transactions_open", "lease_until", "state = 'OPEN'"),
    _index_where("transactions_by_attempt", "attempt_key", "state = 'OPEN'"),
    _index_where("transactions_renamed", "dataset_id", "renamed_from IS NOT NULL"),
    _index_where("transactions_by_build_key", "build_key", "adoptable = 1"),
    text="dataset_id branch_id branch_name type state actor provenance",
    # `renamed_from`, of the first transaction under a new name: the one of the earlier name that
    # it continues.
    null_text="parent_id jump_id version_id attempt_key unit_id inputs_key build_key renamed_from",
    number="depth opened_at",
    null_number="closed_at lease_seconds lease_until attempt_epoch publication",
    # 1 if a build of a clean commit made it and no reset or replacement removed it.
    small="adoptable",
)

# Stored objects that an OPEN transaction reuses; the door rejects condemned ones.
working_objects = table("working_objects", key="transaction_id location")

condemned_objects = table("condemned_objects", key="location", number="condemned_at bytes")

publications = table(
    "publications",
    sa.Index("publications_by_actor", "actor", "number"),
    sa.Index("publications_by_operation", "operation_id"),
    sa.Index("publications_by_time", "at"),
    sa.Index("publications_by_kind", "kind", "number"),
    key="number",
    text="actor kind operation_id",
    number="number at",
)

moves = table(
    "moves",
    sa.Index("moves_by_branch_name", "dataset_id", "branch_name", "publication"),
    sa.Index("moves_by_branch", "branch_id", "publication"),
    sa.Index("moves_by_dataset", "dataset_id", "publication"),
    sa.Index("moves_by_name", "branch_name", "publication"),
    key="publication ordinal",
    # `change` of the branch itself: created, moved, deleted or restored.
    text="dataset_id branch_id branch_name change",
    null_text="from_id to_id",
    number="publication",
    small="ordinal",
)

# Results that a reset removed from a branch, by inputs key: builds there neither adopt nor compute
# them. The rows of a deleted branch stay, for the time that it can be restored.
holds = table(
    "holds",
    key="branch_id inputs_key",
    # Of the newest such reset.
    number="publication",
)

tags = table(
    "tags",
    sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"]),
    sa.Index("tags_by_transaction", "transaction_id"),
    key="dataset_id name",
    text="transaction_id actor",
    number="created_at",
)

protected_branches = table(
    "protected_branches",
    key="name",
    # `datasets` are patterns, as JSON.
    text="actor datasets",
    number="created_at",
    default={"datasets": '["*"]'},
)

units = table("units", text="branch_name actor state", number="opened_at lease_seconds lease_until")

# Newest epoch of each task key: the only one that may stage or publish.
task_keys = table("task_keys", key="key", number="epoch")

attempts = table(
    "attempts",
    _index_where("attempts_by_parent", "parent_key", "parent_key IS NOT NULL"),
    _index_where("attempts_by_token", "token_digest", "token_digest IS NOT NULL"),
    key="key epoch",
    text="state actor scope",
    # The parent is the attempt of the build that the job belongs to: superseding it supersedes
    # this one.
    null_text="token_digest parent_key",
    number="epoch started_at lease_seconds lease_until",
    null_number="ended_at parent_epoch",
)

operations = table(
    "operations",
    sa.UniqueConstraint("principal", "kind", "branch", "key", name="operations_by_key"),
    sa.Index("operations_by_time", "at"),
    text="principal kind branch key request_hash state",
    null_text="receipt",
    number="at",
    null_number="publication",
)

# Publications to lakeFS that are not recorded yet: see `headgate.catalog.workspaces`.
intents = table(
    "intents",
    # `kind` is always "workspace", `phase` always "A"; removing them takes a migration.
    text="operation_id kind actor phase body",
    number="epoch lease_seconds lease_until created_at",
)

# Unused: an intent holds no branch of a dataset. The table stays, since removing it takes a
# migration.
intent_branches = table(
    "intent_branches", sa.Index("intent_branches_by_branch", "branch_id"), key="intent_id branch_id"
)

# Audit of recovery: one row for each operation or transaction that it settled.
recoveries = table(
    "recoveries",
    sa.Index("recoveries_by_operation", "operation_id"),
    text="kind original_actor operation_id outcomes",
    number="at",
    # Always NULL, since recovery publishes nothing; removing the column takes a migration.
    null_number="publication",
)

# Recorded changes that are not publications: opening, abort, takeover, protection.
events = table(
    "events",
    sa.Index("events_by_time", "at"),
    sa.Index("events_by_actor", "actor", "at"),
    text="actor kind detail",
    null_text="dataset_id branch_name transaction_id",
    number="at",
)

jobspecs = table(
    "jobspecs",
    text="branch repository commit_id actor body",
    number="published_at",
    small="clean removed",
)

# The JobSpec that produces a dataset, by the branch name under which it is published.
jobspec_outputs = table(
    "jobspec_outputs",
    sa.Index("jobspec_outputs_by_dataset", "dataset"),
    key="branch dataset",
    text="jobspec_id",
)

builds = table(
    "builds",
    sa.Index("builds_by_time", "started_at"),
    text="branch state actor attempt_key body",
    number="started_at attempt_epoch",
    null_number="ended_at",
)

jobs = table(
    "jobs",
    sa.ForeignKeyConstraint(["build_id"], ["builds.id"]),
    key="build_id ordinal",
    text="state reason body",
    small="ordinal attempts",
)

# A token is shown once, when it is created; only its digest is stored.
tokens = table(
    "tokens",
    sa.UniqueConstraint("digest", name="tokens_by_digest"),
    text="digest actor role branches reads datasets created_by",
    number="created_at",
    null_number="expires_at revoked_at",
    default={"reads": '["*"]', "datasets": '["*"]'},
)

# Places in the write queue of a branch; see `tickets.py`.
tickets = table(
    "tickets",
    sa.Index("tickets_by_branch", "branch_id", "taken_at"),
    key="id branch_id",
    number="taken_at lease_until",
)
