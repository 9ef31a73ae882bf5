"""What routes answer with: the documents of the command line, paged by a header."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import Response

from headgate.handles.wire import publication_wire, receipt_wire
from headgate.model.changes import Receipt
from headgate.model.nouns import PublicationKind
from headgate.store import Store

T = TypeVar("T")

REPLAYED = "Idempotency-Replayed"


class JsonReply(Response):
    """One JSON document, written as the command line writes it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:
            # A name that is not valid Unicode must not make its own error unprintable.
            return json.dumps(content, default=str).encode()


def page(
    request: Request,
    items: Sequence[T],
    *,
    limit: int,
    cursor: Callable[[T], str],
    to: Callable[[T], Any],
) -> JsonReply:
    """The first `limit` of the items; where there are more, a Link to the rest.

    The caller asks for one more than the limit, so that there is no empty last page.
    """
    reply = JsonReply([to(item) for item in items[:limit]])
    if len(items) > limit:
        rest = URL(str(request.url)).include_query_params(cursor=cursor(items[limit - 1]))
        # Without host: what the client called us is the client's to know.
        reply.headers["link"] = f'<{rest.path}?{rest.query}>; rel="next"'
    return reply


def following(items: Sequence[T], cursor: str | None, *, key: Callable[[T], str]) -> Sequence[T]:
    """Of items in the order of their keys, those after the cursor."""
    if cursor is None:
        return items
    return [item for item in items if key(item) > cursor]


def published(store: Store, receipt: Receipt, *, kind: PublicationKind) -> JsonReply:
    """The publication of an operation, or that nothing changed."""
    number = receipt.publication
    body = (
        publication_wire(store.publication(number))
        if number is not None
        else receipt_wire(receipt, kind=kind, actor=store.settings.actor)
    )
    return JsonReply(body, headers={REPLAYED: "true"} if receipt.replayed else None)
