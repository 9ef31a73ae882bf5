"""The task that the session checks, extracts and runs."""

from __future__ import annotations

from pydantic import BaseModel

from headgate.tasks import task


class Params(BaseModel):
    word: str


class Result(BaseModel):
    count: int


@task(name="count_words", owner_email="words@example.com", description="Counts words.")
def count_words(params: Params) -> Result:
    return Result(count=len(params.word.split()))
