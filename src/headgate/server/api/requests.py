"""What clients send in a body; anything that is not described is refused."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from headgate.model.access import Role
from headgate.model.durations import LONGEST_LEASE_SECONDS, LONGEST_SECONDS
from headgate.model.graph.drawing import GraphFormat
from headgate.model.nouns import DatasetKind, TransactionType
from headgate.upkeep.marking import Marking

# Names are checked by the verbs; here only that nobody sends a novel.
Name = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Branch = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
LeaseSeconds = Annotated[int, Field(ge=1, le=LONGEST_LEASE_SECONDS)]

# Never relative: nobody else knows where the server was started.
_ADDRESS = r"^(/|file:/|s3[an]?://)[^\x00-\x1f]+$"
_T = "t-01m7f8gggmxzttp51zc67s"


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
    parent: Branch | None = Field(None, description="A root without one.")
    at: Name | None = Field(None, description="A transaction of the parent's history.")


class Reset(BaseModel):
    model_config = asked(dataset="raw.scans", branch="master", to=_T)
    dataset: Name
    branch: Branch
    to: Name


class Reparent(BaseModel):
    model_config = asked(dataset="raw.scans", branch="feature", under="master")
    dataset: Name
    branch: Branch
    under: Branch | None = Field(None, description="None makes it a root.")


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
    targets: list[Name] = Field(min_length=1, max_length=10_000)
    branch: Branch
    fallback: list[Branch] | None = Field(
        None, max_length=31, description="Left out: as configured, else the primary branch."
    )
    upstream: bool = False
    force: bool = False
    full: bool = False
    parameters: dict[str, Any] = Field(default_factory=dict)


class PlanToShow(Planning):
    model_config = asked(targets=["sales.daily"], branch="feature", fallback=["master"])
    graph: GraphFormat | None = Field(None, description="Draw what is made of what.")


class Where(enum.StrEnum):
    """Who does the jobs of a build: the server's workers, or the client that starts it."""

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
    where: Where = Field(Where.SERVER, description="Who does its jobs.")
    request_key: Annotated[str, StringConstraints(min_length=16, max_length=200)] | None = Field(
        None,
        description="Made up by the client: the same request again is answered with the same "
        "build, as long as this server keeps it.",
    )


class Recover(BaseModel):
    model_config = asked(dry_run=True)
    dry_run: bool = False


class CleanUp(BaseModel):
    model_config = asked(older_than_seconds=604800, dry_run=True)
    older_than_seconds: int = Field(7 * 24 * 3600, ge=1, le=LONGEST_SECONDS)
    dry_run: bool = False
    engine: Marking = Field(Marking.AUTO, description="Who reads the manifests of tables.")


class NewToken(BaseModel):
    model_config = asked(actor="ana", role="writer", branches=["ana/*"], lifetime_seconds=2592000)
    actor: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    role: Role
    branches: list[Branch] = Field(default_factory=lambda: ["*"], min_length=1, max_length=100)
    lifetime_seconds: int | None = Field(
        30 * 24 * 3600, ge=1, le=LONGEST_SECONDS, description="Null: it never expires."
    )
