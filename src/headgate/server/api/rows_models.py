"""Bodies of the routes of work on rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from headgate.server.api.models import shown
from headgate.server.api.requests import Branch, Name, Sha256, asked

Context = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
# The client waits as long: no longer than connections live.
TimeoutSeconds = Annotated[float, Field(ge=0, le=300)]


class Mutation(BaseModel):
    model_config = asked(branch="master", sql="delete from graph.person where id = 'ana'")
    branch: Context = Field(description="A branch, or one with fallbacks: `feature>master`.")
    sql: Annotated[str, StringConstraints(min_length=1, max_length=16 * 1024 * 1024)]
    if_head: dict[str, str | None] = Field(
        default_factory=dict, description="Only while the branch shows these transactions."
    )
    timeout_seconds: TimeoutSeconds = 60


class Load(BaseModel):
    model_config = asked(
        branch="master", mode="merge", rows={"graph.person": [{"id": "ana", "name": "Ana"}]}
    )
    branch: Context = Field(description="A branch, or one with fallbacks: `feature>master`.")
    mode: Literal["append", "merge", "overwrite"] = "append"
    rows: dict[str, list[dict[str, Any]]] = Field(
        default_factory=dict, description="Rows as objects, by dataset."
    )
    arrow: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="Arrow streams in base64, one or several by dataset. A schema's metadata may "
        "name the file that the rows come from, as `headgate.file`.",
    )
    contents: dict[str, list[Sha256]] = Field(
        default_factory=dict,
        description="Arrow streams that were put as contents, by dataset and SHA-256: for more "
        "rows than a document may hold.",
    )
    if_head: dict[str, str | None] = Field(default_factory=dict)
    timeout_seconds: TimeoutSeconds = 60


class Merge(BaseModel):
    model_config = asked(source="corrections", into="master", dry_run=True)
    source: Branch
    into: Branch
    datasets: list[Name] = Field(default_factory=list, max_length=10_000)
    dry_run: bool = False
    timeout_seconds: TimeoutSeconds = 60


class CountsModel(BaseModel):
    inserted: int
    updated: int
    deleted: int


class OutcomeModel(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "publication": 12,
                    "counts": {"graph.person": {"inserted": 0, "updated": 1, "deleted": 0}},
                }
            ]
        }
    )
    publication: int | None = Field(description="Null where nothing changed.")
    counts: dict[str, CountsModel]


class Schema(BaseModel):
    model_config = asked(
        branch="master",
        file="graph.toml",
        text='[dataset."graph.person"]\ncolumns = {id = "string"}',
    )
    branch: Context
    text: str = Field(description="A schema file, in TOML.")
    file: Name = Field("schema.toml", description="What it is called where errors name it.")


class SchemaModel(BaseModel):
    model_config = shown(
        branch="master",
        publication=14,
        datasets=[{"dataset": "graph.person", "steps": ["create the table"]}],
    )
    branch: str
    datasets: list[dict[str, Any]]


class Optimize(BaseModel):
    model_config = asked(dataset="graph.person", branch="master", keep_snapshots=100)
    dataset: Name
    branch: Branch
    keep_snapshots: int = Field(100, ge=1, le=1_000_000)


class OptimizedModel(BaseModel):
    model_config = shown(
        dataset="graph.person",
        branch="master",
        state="optimized",
        publication=15,
        files={"before": 40, "after": 8},
        snapshots_dropped=3,
    )
    dataset: str
    branch: str
    state: str
    publication: int | None
