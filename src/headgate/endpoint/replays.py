"""Refusals that were given for an idempotency key, so that the same key hears the same again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from headgate.endpoint.ports import Idempotency
from headgate.endpoint.replies import Reply
from headgate.errors import IdempotencyKeyReused


class RecordedRefusals:
    """Final 4xx replies by actor and key; writes that happened are on the catalog's record.

    In memory only: a refusal changed nothing, so forgetting it at a restart loses nothing.
    """

    def __init__(self, *, limit: int = 10_000) -> None:
        self._limit = limit
        self._replies: OrderedDict[tuple[str, str], tuple[str, Reply]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, actor: str, idempotency: Idempotency) -> Reply | None:
        """The refusal given before; another request under the same key is invalid."""
        with self._lock:
            known = self._replies.get((actor, idempotency.key))
        if known is None:
            return None
        if known[0] != idempotency.request_hash:
            raise IdempotencyKeyReused(key=idempotency.key)
        return known[1]

    def keep(self, actor: str, idempotency: Idempotency, reply: Reply) -> None:
        """Remembers a final refusal."""
        with self._lock:
            self._replies[actor, idempotency.key] = (idempotency.request_hash, reply)
            while len(self._replies) > self._limit:
                self._replies.popitem(last=False)
