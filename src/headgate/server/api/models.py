"""Bodies of requests and responses, as the OpenAPI document describes them.

Tests check the models of responses against the responses that the server sends.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model
from pydantic_core import PydanticUndefined

from headgate.model.access import Role
from headgate.model.freshness import Reason
from headgate.model.graph_render import GraphFormat
from headgate.model.names import LONGEST_LEASE_SECONDS, LONGEST_SECONDS
from headgate.model.nouns import DatasetKind, JobState, TransactionState, TransactionType
from headgate.store import documents
from headgate.store.documents import Document

_AT = "2026-11-15T09:30:00.000001Z"
_T = "t-01m7f8gggmxzttp51zc67s"


def eg(example: object, default: Any = PydanticUndefined, **how: Any) -> Any:
    """Return a field with its part of the example of a body."""
    return Field(default, examples=[example], **how)


def _add_example(schema: dict[str, Any], model: type[Body]) -> None:
    """Show the examples of the fields as one example of the body."""
    for property in schema.get("properties", {}).values():
        property.pop("examples", None)
    if example := model.example():
        schema["examples"] = [example]


class Body(BaseModel):
    """A body with an example, of which each field declares its part."""

    model_config = ConfigDict(json_schema_extra=_add_example)
    # Parts of the example for fields that are not declared, or that a base class declares.
    more: ClassVar[dict[str, Any]] = {}

    @classmethod
    def example(cls) -> dict[str, Any]:
        fields = ((field.alias or name, field) for name, field in cls.model_fields.items())
        return {name: field.examples[0] for name, field in fields if field.examples} | cls.more


class Reply(Body):
    """Body of a response; more fields are allowed, for growth."""

    model_config = ConfigDict(extra="allow")


class Asked(Body):
    """Body of a request; fields that are not described are rejected."""

    model_config = ConfigDict(extra="forbid")


def model_of(document: Document[Any], **changed: Any) -> Any:
    """Return the model of a noun's document."""
    types = (document.types() | changed).items()
    fields: Any = {name: (kind, eg(document.example[name])) for name, kind in types}
    return create_model(document.name, __base__=Reply, **fields)


class Problem(Reply):
    """Body of every error: what happened and what to do, a stable code, and the facts."""

    more: ClassVar = {
        "manifest_conflict": {
            "table_key": "sales.orders@master",
            "expected": "t-1",
            "actual": "t-2",
        },
        "conflicts": [
            {
                "dataset": "sales.orders",
                "branch": "master",
                "field": "view",
                "expected": "t-1",
                "actual": "t-2",
            }
        ],
    }
    error: str = eg(
        "branch 'master' of 'sales.orders': view is t-2, expected t-1. Another writer moved "
        "it; nothing was changed. Read it again and decide."
    )
    code: str = eg("conflict")


class StoreModel(Reply):
    version: str = eg("0.1.0")
    branch: str = eg("master")
    fallback: list[str] | None = eg(None)
    storage: str = eg("file", description="How engines reach its bytes: `file` or `s3`.")
    actor: str = eg("ana")
    role: Role = eg("writer")
    branches: list[str] = eg(["ana/*"], description="Patterns of those that the token may write.")
    reads: list[str] = eg(
        ["main", "ana/*"], description="Patterns of the branches that it may read."
    )
    datasets: list[str] = eg(
        ["gold.*"], description="Patterns of those that it may read and write."
    )


BranchModel = model_of(documents.BRANCH)
TagModel = model_of(documents.TAG, transaction=str | None)
TransactionModel = model_of(documents.TRANSACTION)
MoveModel = model_of(documents.MOVE)
PublicationModel = model_of(documents.PUBLICATION, publication=int | None, moves=list[MoveModel])  # type: ignore[valid-type]
DatasetModel = model_of(documents.DATASET, branches=list[str])
TokenModel = model_of(documents.TOKEN)


class ContentModel(DatasetModel):  # type: ignore[valid-type,misc]
    more: ClassVar = {
        "schema": [{"name": "id", "type": "long", "required": True}],
        "partitioning": [],
        "properties": {},
        "row_count": 1,
        "rows": [{"id": 1}],
    }
    context: str = eg("master")
    transaction: str | None = eg(_T)
    shown: dict[str, Any] | None = eg(None)


class UnitModel(Reply):
    unit: str = eg("u-01m7f8gggmxzttp51zc67s")
    branch: str = eg("master")
    transactions: list[TransactionModel] = eg([])  # type: ignore[valid-type]
    state: TransactionState = eg("OPEN")
    actor: str = eg("ana")


class EventModel(Reply):
    more: ClassVar = {
        "publication": None,
        "operation": None,
        "moves": [],
        "branch": "master",
        "wanted": "put_file",
        "code": "role_denied",
        "count": 3,
    }
    kind: str = eg("refused")
    actor: str = eg("rea")
    at: str = eg(_AT)


class RecoveryAuditModel(Reply):
    recovery: str = eg("r-01m7f8gggmxzttp51zc67s")
    at: str = eg(_AT)
    kind: str = eg("abort")
    original_actor: str = eg("ana")
    operation: str = eg("t-01m7f8gggmxzttp51zc67s")
    outcomes: list[dict[str, Any]] = eg(
        [
            {
                "target": {"dataset": "raw.scans", "branch": "master"},
                "outcome": "aborted",
                "restored_to": None,
            }
        ]
    )


class FileModel(Reply):
    path: str = eg("2026/scan.tif")
    size: int = eg(5)
    digest: str | None = eg("2cf24d…")
    executable: bool = eg(False)


class OperationModel(Reply):
    operation: str = eg("o-01m7f8gggmxzttp51zc67s")
    state: str = eg("committed")
    publication: int | None = eg(12)
    kind: str = eg("files-put")
    branch: str = eg("master")


class JobSpecModel(Reply):
    more: ClassVar = {"repository": "shop", "inputs": ["sales.orders"], "entry": "shop.daily.daily"}
    jobspec: str = eg("js-01m7f8gggmxzttp51zc67s")
    branch: str = eg("master")
    outputs: list[str] = eg(["sales.daily"])
    removed: bool = eg(False)
    commit: str = eg("5d3f0c2a")
    clean: bool = eg(True)
    actor: str = eg("ana")
    published_at: str = eg(_AT)


class JobModel(Reply):
    outputs: list[str]
    state: JobState
    reason: Reason


class PlanModel(Reply):
    more: ClassVar = {"publications": []}
    build: str | None = eg(None)
    branch: str = eg("feature")
    fallback: list[str] = eg(["master"])
    state: str | None = eg(None)
    jobs: list[JobModel] = eg(
        [
            {
                "outputs": ["sales.daily"],
                "state": "waiting",
                "reason": "never-built",
                "jobspec_branch": "feature",
                "jobspec_commit": "5d3f0c2a",
                "jobspec_clean": True,
                "inputs": [{"dataset": "sales.orders", "branch": "master", "transaction": _T}],
                "attempts": 0,
                "spark_jobs": 0,
                "transactions": {},
            }
        ]
    )


class BuildModel(Reply):
    build: str = eg("build-01m7f8gggmxzttp51zc67s")
    branch: str = eg("feature")
    fallback: list[str] = eg(["master"])
    targets: list[str] = eg(["sales.daily"])
    state: str = eg("running")
    actor: str = eg("ana")
    started_at: str = eg(_AT)
    ended_at: str | None = eg(None)


class BuildWithJobsModel(BuildModel):
    jobs: list[JobModel] = eg(
        [{"outputs": ["sales.daily"], "state": "running", "reason": "stale-logic"}]
    )


class JobLogModel(Reply):
    job: int = eg(0)
    outputs: list[str] = eg(["sales.daily"])
    state: JobState = eg("succeeded")
    log: str | None = eg(
        "1200 rows\n", description="None if the job did not run, or its log is not kept."
    )
    cut: bool = eg(False, description="Whether only the end of the log is returned.")


class BuildLogsModel(Reply):
    build: str = eg("build-01m7f8gggmxzttp51zc67s")
    jobs: list[JobLogModel] = eg([])


class DifferenceModel(Reply):
    dataset: str = eg("sales.orders")
    renamed_from: str | None = eg(None)
    kind: DatasetKind = eg("table")
    from_: str | None = eg(None, alias="from")
    to: str | None = eg(_T)
    identical: bool = eg(False)
    counts: dict[str, int | None] = eg(
        {"before": 1, "after": 2, "added": 1, "removed": 0, "changed": 0}
    )
    samples: dict[str, list[dict[str, Any]]] = eg(
        {"added": [{"id": 2}], "removed": [], "changed": []}
    )
    key: list[str] = eg(["id"])
    basis: str = eg("key")
    # Of a merge: the target's transaction, and the conflicts.
    into: str | None = None
    conflicts: list[dict[str, Any]] | None = None


class RecoveryModel(Reply):
    rolled_forward: list[str] = eg([])
    rolled_back: list[str] = eg([])
    aborted_transactions: list[str] = eg([])
    kept: list[dict[str, Any]] = eg([])


class CleanupModel(Reply):
    more: ClassVar = {"spared": 0, "items": []}
    condemned: int = eg(3)
    deleted: int = eg(0)
    bytes: int = eg(0)
    kept: list[dict[str, Any]] = eg([])
    dry_run: bool = eg(True)


class ExaminedModel(Reply):
    ok: bool = eg(True)
    checks: list[dict[str, Any]] = eg(
        [{"check": "catalog", "ok": True, "findings": [], "notes": []}]
    )


class NewTokenModel(TokenModel):  # type: ignore[valid-type,misc]
    token: str = eg("hg_…", description="Shown only in this reply.")


class ProtectionModel(Reply):
    name: str = eg("master")
    protected: bool = eg(True)
    datasets: list[str] = eg(["gold.*"], description="Patterns of the protected datasets.")


# Bodies of requests

# The verbs check names; these types only limit their length.
Name = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Branch = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
LeaseSeconds = Annotated[int, Field(ge=1, le=LONGEST_LEASE_SECONDS)]

# Never relative: clients do not have the working directory of the server.
_ADDRESS = r"^(/|file:/|s3[an]?://)[^\x00-\x1f]+$"


MayBeNew = Annotated[bool, Field(description="Accept a branch that does not exist yet.")]


class NewDataset(Asked):
    dataset: Name = eg("raw.scans")
    kind: DatasetKind = eg("files", DatasetKind.TABLE)
    branch: Branch | None = eg("master", None, description="The primary branch unless named.")
    create: MayBeNew = False


class TableToRegister(Asked):
    metadata_location: Annotated[str, StringConstraints(max_length=2000, pattern=_ADDRESS)] = eg(
        "s3://lake/sales/orders",
        description="A metadata file or the table's directory, as the server reaches it.",
    )
    branch: Branch | None = eg("master", None, description="The primary branch unless named.")
    create: MayBeNew = False


class NewBranch(Asked):
    dataset: Name = eg("raw.scans")
    name: Branch = eg("feature")
    parent: Branch | None = eg("master", None, description="Null: a root branch.")
    at: Name | None = Field(None, description="A transaction of the parent's history.")


class Reset(Asked):
    dataset: Name = eg("raw.scans")
    branch: Branch = eg("master")
    to: Name = eg(_T)


class Restore(Asked):
    # Every dataset that lost the branch, if there is none.
    dataset: Name | None = eg("raw.scans", None)
    branch: Branch = eg("feature")


class Reparent(Asked):
    dataset: Name = eg("raw.scans")
    branch: Branch = eg("feature")
    under: Branch | None = eg("master", None, description="Null makes it a root branch.")


class NewTag(Asked):
    dataset: Name = eg("raw.scans")
    name: Branch = eg("2026-q3")
    at: Name = eg(_T)


class NewTransaction(Asked):
    dataset: Name = eg("raw.scans")
    branch: Branch = eg("master")
    type: TransactionType = eg("APPEND", TransactionType.UPDATE)
    lease_seconds: LeaseSeconds = eg(900, 900)


class NewUnit(Asked):
    branch: Branch = eg("master")
    lease_seconds: LeaseSeconds = eg(900, 900)
    create: MayBeNew = False


class InUnit(Asked):
    dataset: Name = eg("raw.scans")


class FileToPut(Asked):
    path: Path
    size: int = Field(0, ge=0)
    digest: Sha256 | None = Field(None, description="Null: a directory.")
    executable: bool = False


class Edit(Asked):
    branch: Branch | None = eg("master", None)
    txn: Name | None = Field(None, description="An OPEN transaction or unit, in place of a branch.")
    put: list[FileToPut] = eg([], default_factory=list, max_length=100_000)
    remove: list[Path] = eg(["2026/draft.tif"], default_factory=list, max_length=100_000)


class Planning(Asked):
    targets: list[Name] = eg(
        ["sales.daily"],
        min_length=1,
        max_length=10_000,
        description="Names of datasets, or patterns: `gold.*`.",
    )
    branch: Branch = eg("feature")
    fallback: list[Branch] | None = eg(
        ["master"],
        None,
        max_length=31,
        description="Left out: as configured, else the primary branch.",
    )
    upstream: bool = False
    force: bool = False
    full: bool = False
    parameters: dict[str, Any] = Field(default_factory=dict)
    create: bool | None = Field(
        None, description="Accept a branch that does not exist yet; left out: with a fallback."
    )

    def options(self) -> Any:
        """Return the options of `Store.plan` or `Store.build`, which have the same names."""
        return self.model_dump(exclude={"targets", "where", "request_key"})


class PlanToShow(Planning):
    graph: GraphFormat | None = Field(None, description="Format of a drawing of the datasets.")


class Where(enum.StrEnum):
    """Place of a build's jobs: the server's workers, or the client that starts the build."""

    SERVER = "server"
    CALLER = "caller"


class Building(Planning):
    atomic: bool = eg(True, False)
    retries: int = eg(1, 0, ge=0, le=100)
    abort_on_failure: bool = False
    wait_seconds: float = Field(0, ge=0, le=3600)
    task_key: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    where: Where = Field(Where.SERVER, description="The process that runs its jobs.")
    request_key: Annotated[str, StringConstraints(min_length=16, max_length=200)] | None = Field(
        None,
        description="Generated by the client: a repeated request returns the same build, as long "
        "as this server keeps it.",
    )


class Recover(Asked):
    dry_run: bool = eg(True, False)


class CleanUp(Asked):
    older_than_seconds: int = eg(604800, 7 * 24 * 3600, ge=1, le=LONGEST_SECONDS)
    dry_run: bool = eg(True, False)
    confirm_warehouse: bool = Field(
        False, description="This catalog owns the warehouse, also if it was restored or copied."
    )
    confirm_clock: bool = Field(
        False, description="The clock is right, also if nothing was recorded for weeks."
    )


Patterns = Annotated[list[Branch], Field(min_length=1, max_length=100)]


class NewToken(Asked):
    actor: Annotated[str, StringConstraints(min_length=1, max_length=200)] = eg("ana")
    role: Role = eg("writer")
    branches: Patterns = eg(
        ["ana/*"], default_factory=lambda: ["*"], description="That it may write."
    )
    reads: Patterns = eg(
        ["main", "ana/*"], default_factory=lambda: ["*"], description="Branches to read."
    )
    datasets: Patterns = eg(
        ["gold.*"], default_factory=lambda: ["*"], description="That it may read and write."
    )
    lifetime_seconds: int | None = eg(
        2592000, 30 * 24 * 3600, ge=1, le=LONGEST_SECONDS, description="Null: it never expires."
    )
