"""Bodies of requests and responses, as the OpenAPI document describes them.

Tests check the models of responses against the responses that the server sends.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from headgate.model.access import Role
from headgate.model.freshness import Reason
from headgate.model.graph_render import GraphFormat
from headgate.model.names import LONGEST_LEASE_SECONDS, LONGEST_SECONDS
from headgate.model.nouns import DatasetKind, JobState, TransactionState, TransactionType
from headgate.store import documents
from headgate.store.documents import Document
from headgate.upkeep.reachability import Marking

_AT = "2026-11-15T09:30:00.000001Z"
_T = "t-01m7f8gggmxzttp51zc67s"


def shown(**example: Any) -> ConfigDict:
    """Return the config of a response with an example; more fields are allowed, for growth."""
    return ConfigDict(extra="allow", json_schema_extra={"examples": [example]})


def _example_of(model: type[BaseModel]) -> dict[str, Any]:
    example: dict[str, Any] = model.model_json_schema()["examples"][0]
    return example


def model_of(document: Document[Any], **changed: Any) -> Any:
    """Return the model of a noun's document."""
    fields: Any = {name: (kind, ...) for name, kind in (document.types() | changed).items()}
    return create_model(document.name, __config__=shown(**document.example), **fields)


class Problem(BaseModel):
    """Body of every error: what happened and what to do, a stable code, and the facts."""

    model_config = shown(
        error="branch 'master' of 'sales.orders': view is t-2, expected t-1. Another writer moved "
        "it; nothing was changed. Read it again and decide.",
        code="conflict",
        manifest_conflict={
            "table_key": "sales.orders@master",
            "expected": "t-1",
            "actual": "t-2",
        },
        conflicts=[
            {
                "dataset": "sales.orders",
                "branch": "master",
                "field": "view",
                "expected": "t-1",
                "actual": "t-2",
            }
        ],
    )
    error: str
    code: str


class StoreModel(BaseModel):
    model_config = shown(
        version="0.1.0",
        branch="master",
        fallback=None,
        storage="file",
        actor="ana",
        role="writer",
        branches=["ana/*"],
        reads=["main", "ana/*"],
        datasets=["gold.*"],
    )
    version: str
    branch: str
    fallback: list[str] | None
    storage: str = Field(description="How engines reach its bytes: `file` or `s3`.")
    actor: str
    role: Role
    branches: list[str] = Field(description="Patterns of those that the token may write.")
    reads: list[str] = Field(description="Patterns of the branches that it may read.")
    datasets: list[str] = Field(description="Patterns of those that it may read and write.")


BranchModel = model_of(documents.BRANCH)
TagModel = model_of(documents.TAG, transaction=str | None)
TransactionModel = model_of(documents.TRANSACTION)
MoveModel = model_of(documents.MOVE)
PublicationModel = model_of(documents.PUBLICATION, publication=int | None, moves=list[MoveModel])  # type: ignore[valid-type]
DatasetModel = model_of(documents.DATASET, branches=list[str])
TokenModel = model_of(documents.TOKEN)


class ContentModel(DatasetModel):  # type: ignore[valid-type,misc]
    model_config = shown(
        dataset="sales.orders",
        kind="table",
        branches=["master"],
        context="master",
        transaction=_T,
        shown=None,
        schema=[{"name": "id", "type": "long", "required": True}],
        partitioning=[],
        properties={},
        row_count=1,
        rows=[{"id": 1}],
    )
    context: str
    transaction: str | None
    shown: dict[str, Any] | None


class UnitModel(BaseModel):
    model_config = shown(
        unit="u-01m7f8gggmxzttp51zc67s",
        branch="master",
        transactions=[],
        state="OPEN",
        actor="ana",
    )
    unit: str
    branch: str
    transactions: list[TransactionModel]  # type: ignore[valid-type]
    state: TransactionState
    actor: str


class EventModel(BaseModel):
    model_config = shown(
        publication=None,
        kind="refused",
        actor="rea",
        at=_AT,
        operation=None,
        moves=[],
        branch="master",
        wanted="put_file",
        code="role_denied",
        count=3,
    )
    kind: str
    actor: str
    at: str


class RecoveryAuditModel(BaseModel):
    model_config = shown(
        recovery="r-01m7f8gggmxzttp51zc67s",
        at=_AT,
        kind="abort",
        original_actor="ana",
        operation="t-01m7f8gggmxzttp51zc67s",
        outcomes=[
            {
                "target": {"dataset": "raw.scans", "branch": "master"},
                "outcome": "aborted",
                "restored_to": None,
            }
        ],
    )
    recovery: str
    at: str
    kind: str
    original_actor: str
    operation: str
    outcomes: list[dict[str, Any]]


class FileModel(BaseModel):
    model_config = shown(path="2026/scan.tif", size=5, digest="2cf24d…", executable=False)
    path: str
    size: int
    digest: str | None
    executable: bool


class OperationModel(BaseModel):
    model_config = shown(
        operation="o-01m7f8gggmxzttp51zc67s",
        state="committed",
        publication=12,
        kind="files-put",
        branch="master",
    )
    operation: str
    state: str
    publication: int | None
    kind: str
    branch: str


class JobSpecModel(BaseModel):
    model_config = shown(
        jobspec="js-01m7f8gggmxzttp51zc67s",
        branch="master",
        outputs=["sales.daily"],
        removed=False,
        repository="shop",
        commit="5d3f0c2a",
        clean=True,
        actor="ana",
        published_at=_AT,
        inputs=["sales.orders"],
        entry="shop.daily.daily",
    )
    jobspec: str
    branch: str
    outputs: list[str]
    removed: bool
    commit: str
    clean: bool
    actor: str
    published_at: str


class JobModel(BaseModel):
    model_config = ConfigDict(extra="allow")
    outputs: list[str]
    state: JobState
    reason: Reason


class PlanModel(BaseModel):
    model_config = shown(
        build=None,
        branch="feature",
        fallback=["master"],
        state=None,
        jobs=[
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
        ],
        publications=[],
    )
    build: str | None
    branch: str
    fallback: list[str]
    state: str | None
    jobs: list[JobModel]


class BuildModel(BaseModel):
    model_config = shown(
        build="build-01m7f8gggmxzttp51zc67s",
        branch="feature",
        fallback=["master"],
        targets=["sales.daily"],
        state="running",
        actor="ana",
        started_at=_AT,
        ended_at=None,
    )
    build: str
    branch: str
    fallback: list[str]
    targets: list[str]
    state: str
    actor: str
    started_at: str
    ended_at: str | None


class BuildWithJobsModel(BuildModel):
    model_config = shown(
        **_example_of(BuildModel),
        jobs=[{"outputs": ["sales.daily"], "state": "running", "reason": "stale-logic"}],
    )
    jobs: list[JobModel]


class JobLogModel(BaseModel):
    model_config = shown(
        job=0, outputs=["sales.daily"], state="succeeded", log="1200 rows\n", cut=False
    )
    job: int
    outputs: list[str]
    state: JobState
    log: str | None = Field(description="None if the job did not run, or its log is not kept.")
    cut: bool = Field(description="Whether only the end of the log is returned.")


class BuildLogsModel(BaseModel):
    model_config = shown(build="build-01m7f8gggmxzttp51zc67s", jobs=[])
    build: str
    jobs: list[JobLogModel]


class DifferenceModel(BaseModel):
    model_config = shown(
        dataset="sales.orders",
        renamed_from=None,
        kind="table",
        to=_T,
        identical=False,
        counts={"before": 1, "after": 2, "added": 1, "removed": 0, "changed": 0},
        samples={"added": [{"id": 2}], "removed": [], "changed": []},
        key=["id"],
        basis="key",
        **{"from": None},
    )
    dataset: str
    renamed_from: str | None
    kind: DatasetKind
    from_: str | None = Field(alias="from")
    to: str | None
    identical: bool
    counts: dict[str, int | None]
    samples: dict[str, list[dict[str, Any]]]
    key: list[str]
    basis: str
    # Of a merge: the target's transaction, and the conflicts.
    into: str | None = None
    conflicts: list[dict[str, Any]] | None = None


class RecoveryModel(BaseModel):
    model_config = shown(rolled_forward=[], rolled_back=[], aborted_transactions=[], kept=[])
    rolled_forward: list[str]
    rolled_back: list[str]
    aborted_transactions: list[str]
    kept: list[dict[str, Any]]


class CleanupModel(BaseModel):
    model_config = shown(condemned=3, deleted=0, bytes=0, kept=[], dry_run=True, spared=0, items=[])
    condemned: int
    deleted: int
    bytes: int
    kept: list[dict[str, Any]]
    dry_run: bool


class ExaminedModel(BaseModel):
    model_config = shown(
        ok=True, checks=[{"check": "catalog", "ok": True, "findings": [], "notes": []}]
    )
    ok: bool
    checks: list[dict[str, Any]]


class NewTokenModel(TokenModel):  # type: ignore[valid-type,misc]
    model_config = shown(**_example_of(TokenModel), token="hg_…")
    token: str = Field(description="Shown only in this reply.")


class ProtectionModel(BaseModel):
    model_config = shown(name="master", protected=True, datasets=["gold.*"])
    name: str
    protected: bool
    datasets: list[str] = Field(description="Patterns of the protected datasets.")


# Bodies of requests; fields that are not described are rejected

# The verbs check names; these types only limit their length.
Name = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Branch = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
LeaseSeconds = Annotated[int, Field(ge=1, le=LONGEST_LEASE_SECONDS)]

# Never relative: clients do not have the working directory of the server.
_ADDRESS = r"^(/|file:/|s3[an]?://)[^\x00-\x1f]+$"


def asked(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class NewDataset(BaseModel):
    model_config = asked(dataset="raw.scans", kind="files", branch="master")
    dataset: Name
    kind: DatasetKind = DatasetKind.TABLE
    branch: Branch | None = Field(None, description="The primary branch unless named.")


class TableToRegister(BaseModel):
    model_config = asked(metadata_location="s3://lake/sales/orders", branch="master")
    metadata_location: Annotated[str, StringConstraints(max_length=2000, pattern=_ADDRESS)] = Field(
        description="A metadata file or the table's directory, as the server reaches it."
    )
    branch: Branch | None = Field(None, description="The primary branch unless named.")


class NewBranch(BaseModel):
    model_config = asked(dataset="raw.scans", name="feature", parent="master")
    dataset: Name
    name: Branch
    parent: Branch | None = Field(None, description="Null: a root branch.")
    at: Name | None = Field(None, description="A transaction of the parent's history.")


class Reset(BaseModel):
    model_config = asked(dataset="raw.scans", branch="master", to=_T)
    dataset: Name
    branch: Branch
    to: Name


class Restore(BaseModel):
    model_config = asked(dataset="raw.scans", branch="feature")
    # Every dataset that lost the branch, if there is none.
    dataset: Name | None = None
    branch: Branch


class Reparent(BaseModel):
    model_config = asked(dataset="raw.scans", branch="feature", under="master")
    dataset: Name
    branch: Branch
    under: Branch | None = Field(None, description="Null makes it a root branch.")


class NewTag(BaseModel):
    model_config = asked(dataset="raw.scans", name="2026-q3", at=_T)
    dataset: Name
    name: Branch
    at: Name


class NewTransaction(BaseModel):
    model_config = asked(dataset="raw.scans", branch="master", type="APPEND", lease_seconds=900)
    dataset: Name
    branch: Branch
    type: TransactionType = TransactionType.UPDATE
    lease_seconds: LeaseSeconds = 900


class NewUnit(BaseModel):
    model_config = asked(branch="master", lease_seconds=900)
    branch: Branch
    lease_seconds: LeaseSeconds = 900
    create: bool = Field(False, description="Accept a branch that does not exist yet.")


class InUnit(BaseModel):
    model_config = asked(dataset="raw.scans")
    dataset: Name


class FileToPut(BaseModel):
    model_config = ConfigDict(extra="forbid")
    path: Path
    size: int = Field(0, ge=0)
    digest: Sha256 | None = Field(None, description="Null: a directory.")
    executable: bool = False


class Edit(BaseModel):
    model_config = asked(branch="master", put=[], remove=["2026/draft.tif"])
    branch: Branch | None = None
    txn: Name | None = Field(None, description="An OPEN transaction or unit, in place of a branch.")
    put: list[FileToPut] = Field(default_factory=list, max_length=100_000)
    remove: list[Path] = Field(default_factory=list, max_length=100_000)


class Planning(BaseModel):
    model_config = asked(targets=["sales.daily"], branch="feature", fallback=["master"])
    targets: list[Name] = Field(
        min_length=1, max_length=10_000, description="Names of datasets, or patterns: `gold.*`."
    )
    branch: Branch
    fallback: list[Branch] | None = Field(
        None, max_length=31, description="Left out: as configured, else the primary branch."
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
    model_config = asked(
        targets=["sales.daily"], branch="feature", fallback=["master"], atomic=True, retries=1
    )
    atomic: bool = False
    retries: int = Field(0, ge=0, le=100)
    abort_on_failure: bool = False
    wait_seconds: float = Field(0, ge=0, le=3600)
    task_key: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    where: Where = Field(Where.SERVER, description="The process that runs its jobs.")
    request_key: Annotated[str, StringConstraints(min_length=16, max_length=200)] | None = Field(
        None,
        description="Generated by the client: a repeated request returns the same build, as long "
        "as this server keeps it.",
    )


class Recover(BaseModel):
    model_config = asked(dry_run=True)
    dry_run: bool = False


class CleanUp(BaseModel):
    model_config = asked(older_than_seconds=604800, dry_run=True)
    older_than_seconds: int = Field(7 * 24 * 3600, ge=1, le=LONGEST_SECONDS)
    dry_run: bool = False
    engine: Marking = Field(Marking.AUTO, description="Engine that reads the manifests of tables.")
    confirm_warehouse: bool = Field(
        False, description="This catalog owns the warehouse, also if it was restored or copied."
    )
    confirm_clock: bool = Field(
        False, description="The clock is right, also if nothing was recorded for weeks."
    )


Patterns = Annotated[list[Branch], Field(min_length=1, max_length=100)]


class NewToken(BaseModel):
    model_config = asked(
        actor="ana",
        role="writer",
        branches=["ana/*"],
        reads=["main", "ana/*"],
        datasets=["gold.*"],
        lifetime_seconds=2592000,
    )
    actor: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    role: Role
    branches: Patterns = Field(default_factory=lambda: ["*"], description="That it may write.")
    reads: Patterns = Field(default_factory=lambda: ["*"], description="Branches to read.")
    datasets: Patterns = Field(
        default_factory=lambda: ["*"], description="That it may read and write."
    )
    lifetime_seconds: int | None = Field(
        30 * 24 * 3600, ge=1, le=LONGEST_SECONDS, description="Null: it never expires."
    )
