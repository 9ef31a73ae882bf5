"""JobSpecs as clients send them: every field is described, for all later plans read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from headgate.model.nouns import DatasetKind
from headgate.server.api.models import JobSpecModel, shown
from headgate.server.api.requests import Branch, Name, Path, Sha256, asked

Words = Annotated[str, StringConstraints(max_length=10_000)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_IDENTIFIER = r"[^\W\d]\w*"
Function = Annotated[str, StringConstraints(max_length=500, pattern=rf"^{_IDENTIFIER}$")]
Module = Annotated[
    str, StringConstraints(max_length=500, pattern=rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*$")
]
# One line that people can read: it is shown, and compared.
Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]+$")]
_MANY = 10_000

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SOURCE = {
    "repository": "git.example.org/shop",
    "commit": "5d3f0c2a",
    "branch": "feature",
    "clean": True,
}
_DECLARED: dict[str, Any] = {
    "module": "shop.daily",
    "function": "daily",
    "file": "shop/daily.py",
    "line": 7,
    "inputs": [{"name": "orders", "dataset": "sales.orders"}],
    "outputs": [{"name": "out", "dataset": "sales.daily", "kind": "table"}],
}


class SentCheck(BaseModel):
    model_config = asked(name="has rows", on_error="FAIL", expectation={"op": "true"})
    name: Argument
    on_error: Literal["FAIL", "WARN"]
    expectation: dict[str, Any]
    description: Words = ""


class SentInput(BaseModel):
    model_config = asked(name="orders", dataset="sales.orders")
    name: Argument
    dataset: Name
    branch: Branch | None = None
    transaction: Argument | None = None
    checks: list[SentCheck] = Field(default_factory=list, max_length=_MANY)
    description: Words = ""


class SentOutput(BaseModel):
    model_config = asked(name="out", dataset="sales.daily", kind="table")
    name: Argument
    dataset: Name
    kind: DatasetKind = DatasetKind.TABLE
    checks: list[SentCheck] = Field(default_factory=list, max_length=_MANY)
    partition_cols: list[Argument] = Field(default_factory=list, max_length=_MANY)
    sort_by: list[Argument] = Field(default_factory=list, max_length=_MANY)
    description: Words = ""


class SentParameter(BaseModel):
    model_config = asked(name="days", kind="integer", default=7)
    name: Argument
    kind: Literal["string", "integer", "float", "boolean"]
    default: bool | int | float | Words
    description: Words = ""


class SentIncremental(BaseModel):
    model_config = asked(semantic_version=1, snapshot_inputs=["rates"])
    require_incremental: bool = False
    semantic_version: int = 1
    snapshot_inputs: list[Argument] = Field(default_factory=list, max_length=_MANY)
    allow_retention: bool = False
    strict_append: bool = False


class SentDeclaration(BaseModel):
    model_config = asked(**_DECLARED)
    module: Module
    function: Function
    file: Path
    line: int = Field(ge=0)
    inputs: list[SentInput] = Field(max_length=_MANY)
    outputs: list[SentOutput] = Field(min_length=1, max_length=_MANY)
    parameters: list[SentParameter] = Field(default_factory=list, max_length=_MANY)
    incremental: SentIncremental | None = None
    fresh: Literal["inputs", "never"] | Annotated[float, Field(ge=0)] = "inputs"
    bundle_data: list[Path] = Field(default_factory=list, max_length=_MANY)
    allowed_run_seconds: Annotated[float, Field(gt=0)] | None = None
    profile: list[Argument] = Field(default_factory=list, max_length=_MANY)
    spark_conf: dict[Argument, Words] = Field(default_factory=dict)
    allow_empty: bool = False


class SentJobSpec(BaseModel):
    model_config = asked(declaration=_DECLARED, logic_hash=_DIGEST)
    declaration: SentDeclaration
    logic_hash: Sha256


class SentSource(BaseModel):
    model_config = asked(**_SOURCE)
    repository: Line = Field(description="A name that clones share, without credentials.")
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")]
    branch: Branch
    clean: bool = Field(description="False where files differ from the commit.")


class JobSpecsToPublish(BaseModel):
    model_config = asked(
        source=_SOURCE,
        bundle=_DIGEST,
        jobspecs=[{"declaration": _DECLARED, "logic_hash": _DIGEST}],
    )
    source: SentSource
    bundle: Sha256 = Field(description="The code: a zip, sent to `/contents/{digest}` before.")
    jobspecs: list[SentJobSpec] = Field(max_length=_MANY)


class PublishedJobSpecsModel(BaseModel):
    model_config = shown(published=[], removed=["sales.hourly"])
    published: list[JobSpecModel]
    removed: list[str] = Field(description="Datasets that the repository no longer makes there.")
