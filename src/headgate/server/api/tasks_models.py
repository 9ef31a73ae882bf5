"""What a client that does the attempts of workspace tasks says and hears."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from headgate.model.nouns import AttemptState
from headgate.server.api.models import shown
from headgate.server.api.requests import Branch, Name, Sha256, asked

_KEY = "task:render_song:k-01m7f8gggmxzttp51zc67s"
_SECRET = "of-this-attempt-alone-made-by-the-client-43"
_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_T = "t-01m7f8gggmxzttp51zc67s"
_MOST_LABELS = 50
_MOST_TABLES = 1000

# 32 random bytes in URL-safe base64: nobody guesses one, and nobody can have chosen a short one.
Secret = Annotated[
    str,
    StringConstraints(pattern="^[A-Za-z0-9_-]{43}$"),
    Field(description="The attempt's own: 32 random bytes in URL-safe base64; kept as a hash."),
]
Key = Annotated[
    str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Word = Annotated[str, StringConstraints(max_length=500)]


class Ending(enum.StrEnum):
    """How an attempt can end by its holder's word."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class NewAttempt(BaseModel):
    model_config = asked(key=_KEY, secret=_SECRET, branch="master")
    key: Key = Field(description="The identity of the work across its attempts.")
    secret: Secret
    branch: Branch | None = Field(None, description="That it is going to move, where there is one.")


class AttemptToRenew(BaseModel):
    model_config = asked(secret=_SECRET)
    secret: Secret


class AttemptToEnd(BaseModel):
    model_config = asked(secret=_SECRET, state="succeeded")
    secret: Secret
    state: Ending


class TablesToOpen(BaseModel):
    model_config = asked(
        secret=_SECRET,
        repository="work.songs",
        branch="master",
        ref=_T,
        inputs=["sales.orders"],
        outputs=["sales.totals"],
    )
    secret: Secret
    repository: Name = Field(description="The dataset of the workspace.")
    branch: Branch
    ref: Name
    inputs: list[Name] = Field(default_factory=list, max_length=_MOST_TABLES)
    outputs: list[Name] = Field(default_factory=list, max_length=_MOST_TABLES)


class WorkspaceToPublish(BaseModel):
    model_config = asked(
        secret=_SECRET,
        branch="master",
        ref=_T,
        root=_SHA,
        task="render_song",
        execution="render_song-1-5f0c2b7a9d3e4f10",
        labels={"orchestrator": "local"},
    )
    secret: Secret
    branch: Branch = Field(description="The target.")
    ref: Name = Field(description="The input: a committed transaction.")
    root: Sha256 | None = Field(
        description="The tree that the attempt made, whose contents were sent; null: no change."
    )
    read_only: bool = Field(False, description="Only the tables of the attempt are published.")
    task: Word = ""
    execution: Word = ""
    labels: dict[Word, Word] = Field(default_factory=dict, max_length=_MOST_LABELS)


class AttemptModel(BaseModel):
    model_config = shown(key=_KEY, epoch=1, state="running", actor="ana", lease_seconds=60)
    key: str
    epoch: int
    state: AttemptState
    actor: str
    lease_seconds: int


class WorkspaceModel(BaseModel):
    model_config = shown(repository="work.songs", branch="master", ref=_T, root=_SHA)
    repository: str
    branch: str
    ref: str
    root: str


class PublishedWorkspaceModel(BaseModel):
    model_config = shown(repository="work.songs", branch="master", ref=_T)
    repository: str
    branch: str
    ref: str
