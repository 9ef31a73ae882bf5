"""The route of differences between two branches, contexts or transactions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import DifferenceModel
from headgate.server.api.replies import JsonReply
from headgate.server.api.routing import documented, router

routes = router("differences")


@routes.get("/diff", **documented("diff", DifferenceModel | list[DifferenceModel]))
def diff(
    caller: CallerDependency,
    before: Annotated[str, Query(alias="from", max_length=7000, examples=["master"])],
    after: Annotated[str, Query(alias="to", max_length=7000, examples=["feature"])],
    dataset: str | None = None,
    rows: Annotated[int, Query(ge=0, le=1000, description="How many samples of each.")] = 5,
    key: Annotated[list[str] | None, Query(description="Columns that tell rows apart.")] = None,
) -> JsonReply:
    """Schema, counts and samples of one dataset; without one, of all that differ, as a list."""
    return JsonReply(
        caller.looking().differences(before, after, dataset=dataset, rows=rows, key=key or ())
    )
