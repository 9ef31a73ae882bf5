"""Routes of tags: list, create and delete."""

from __future__ import annotations

from fastapi import Request

from headgate.errors import NotFound
from headgate.handles.nouns import tag_json
from headgate.model.nouns import Tag
from headgate.server.api.asking import Cursor, Limit
from headgate.server.api.caller import Caller, CallerDependency
from headgate.server.api.models import TagModel
from headgate.server.api.replies import JsonReply, following, page
from headgate.server.api.requests import NewTag
from headgate.server.api.routing import documented, router

routes = router("tags")


@routes.get("/tags", **documented("list_tags", list[TagModel], paged=True))
def list_tags(
    caller: CallerDependency,
    request: Request,
    dataset: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Tags of one dataset, or of all, with the transactions that they pin."""
    found = sorted(caller.looking().tags(dataset), key=_key)
    rest = following(found, cursor, key=_key)
    return page(request, rest, limit=limit, cursor=_key, to=tag_json)


@routes.post("/tags", **documented("create_tag", TagModel, status=201))
def create_tag(caller: CallerDependency, body: NewTag) -> JsonReply:
    """Pins a COMMITTED transaction; whoever may write the branch it was made on may."""
    branch = caller.looking().opened(body.at).branch
    with caller.acting(branch) as store:
        pinned = store.dataset(body.dataset).tag(body.name, at=body.at)
        return JsonReply(tag_json(pinned), status_code=201)


@routes.delete("/tags/{dataset}/{name:path}", **documented("delete_tag", TagModel))
def delete_tag(caller: CallerDependency, dataset: str, name: str) -> JsonReply:
    """Takes a tag away; cleanup may then condemn what only it kept."""
    with caller.acting(_branch_of(caller, dataset, name)) as store:
        found = store.dataset(dataset)
        found.untag(name)
        return JsonReply({"dataset": str(found.name), "name": name, "transaction": None})


def _branch_of(caller: Caller, dataset: str, name: str) -> str:
    store = caller.looking()
    pinned = next((tag for tag in store.tags(dataset) if tag.name == name), None)
    if pinned is None:
        raise NotFound(f"dataset {dataset} has no tag {name!r}.", tag=name)
    return store.opened(pinned.transaction).branch


def _key(tag: Tag) -> str:
    return f"{tag.dataset}/{tag.name}"
