"""Threads of the server's requests.

Handlers are synchronous, and run in threads. A handler that would wait for another writer returns
its thread, and a coroutine waits in its place. Operations that others wait for, such as a commit,
have threads and database connections of their own, which other requests cannot use up.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial, wraps
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from headgate.catalog.database import PLACE, RESERVED, Database, Place, Suspended, Wait
from headgate.catalog.tickets import RENEW_SECONDS, LineWait, count_ahead, renew_lines
from headgate.errors import HeadgateError, Unavailable

T = TypeVar("T")

# They end a wait of other requests, or keep alive what a client holds; none of them takes long.
RESERVED_OPERATIONS = frozenset(
    {
        "abort_transaction",
        "cancel_build",
        "commit_transaction",
        "end_attempt",
        "renew_attempt",
        "renew_transaction",
        "work_build",
    }
)
_RESERVED_THREADS = 8
# For writers of other processes; those of this one wake the next.
_POLL_SECONDS = 0.05
_LEAST_SECONDS = 0.02


class Threads:
    """Runs synchronous calls of requests, and holds those that wait for a writer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reserve = CapacityLimiter(_RESERVED_THREADS)
        self._waits: dict[Wait, asyncio.Event] = {}
        self._poll: asyncio.Task[None] | None = None
        self._something_ended = asyncio.Event()
        self._is_stopping = False

    async def run(self, call: Callable[[], T], *, is_reserved: bool = False) -> T:
        """Run a call in a thread, perhaps in one of the reserve; the call does not wait long."""
        if not is_reserved:
            return await run_sync(call)
        try:
            return await self._run_reserved(call)
        finally:
            self._something_ended.set()

    async def run_in_turn(self, call: Callable[[], T], receive: Receive | None = None) -> T:
        """Run a call that may suspend itself; repeat it after each wait.

        A client that disconnects while its call waits gives up its place.
        """
        place = Place()
        before = PLACE.set(place)
        try:
            while True:
                try:
                    return await run_sync(call)
                except Suspended as suspended:
                    wait = suspended.wait
                await self._wait(wait, receive)
        finally:
            PLACE.reset(before)
            if place.kept is not None:
                with CancelScope(shield=True):
                    await self._run_reserved(place.kept.leave)
            self._wake_here()
            self._something_ended.set()

    def stop(self) -> None:
        """End all waits: the server stops, and those calls are not repeated."""
        self._is_stopping = True
        for woken in self._waits.values():
            woken.set()

    async def _wait(self, wait: Wait, receive: Receive | None) -> None:
        woken = self._waits[wait] = asyncio.Event()
        if self._poll is None or self._poll.done():
            # Without the context of this request, which ends sooner.
            self._poll = asyncio.create_task(self._watch(), context=Context())
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(woken.wait())]
        if receive is not None:
            ends.append(asyncio.create_task(_until_gone(receive)))
        left = max(0.0, wait.deadline - time.monotonic())
        try:
            if not self._is_stopping:
                await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waits[wait]
            for end in ends:
                end.cancel()
        if self._is_stopping:
            raise Unavailable(
                "the server stops, and this request still waited for another writer: nothing was "
                "changed. Send it again."
            )
        if not woken.is_set() and any(end.done() for end in ends):
            raise ClientDisconnect

    async def _watch(self) -> None:
        """Wake the calls whose wait is over, until none is left; one task looks for all."""
        renewed_at = time.monotonic()
        while self._waits:
            self._wake_here()
            lines = [
                wait
                for wait, woken in self._waits.items()
                if isinstance(wait, LineWait) and not woken.is_set()
            ]
            renews = time.monotonic() - renewed_at >= RENEW_SECONDS
            renewed_at = time.monotonic() if renews else renewed_at
            # Without a database the calls wait until their deadlines.
            with suppress(HeadgateError):
                for wait in await self._find_ready(lines, renews=renews) if lines else ():
                    if wait in self._waits:
                        self._waits[wait].set()
            await asyncio.sleep(_LEAST_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._something_ended.wait(), _POLL_SECONDS)
            self._something_ended.clear()

    def _wake_here(self) -> None:
        """Wake the calls that wait for a condition inside this process."""
        for wait, woken in self._waits.items():
            if wait.is_over():
                woken.set()

    async def _find_ready(self, waits: list[LineWait], *, renews: bool) -> list[LineWait]:
        database, lines = self._database, [wait.line for wait in waits]
        if renews:
            await self._run_reserved(lambda: database.write(lambda c: renew_lines(c, lines)))
        counts = await self._run_reserved(lambda: database.read(lambda c: count_ahead(c, waits)))
        return [wait for wait, ahead in zip(waits, counts, strict=True) if not ahead]

    async def _run_reserved(self, call: Callable[[], T]) -> T:
        before = RESERVED.set(True)
        try:
            return await run_sync(call, limiter=self._reserve)
        finally:
            RESERVED.reset(before)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# Routes

_REQUEST: ContextVar[Request] = ContextVar("_REQUEST")


class ThreadRoute(APIRoute):
    """A route whose synchronous handler runs in the threads of the application."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **how: Any) -> None:
        if not inspect.iscoroutinefunction(endpoint):
            is_reserved = how.get("operation_id") in RESERVED_OPERATIONS
            endpoint = _in_threads(endpoint, is_reserved=is_reserved)
        super().__init__(path, endpoint, **how)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_context(request: Request) -> Response:
            _REQUEST.set(request)
            return await handle(request)

        return handle_in_context


def _in_threads(endpoint: Callable[..., T], *, is_reserved: bool) -> Callable[..., Any]:
    @wraps(endpoint)
    async def handle(**values: Any) -> T:
        request = _REQUEST.get()
        threads: Threads = request.app.state.threads
        call = partial(endpoint, **values)
        if is_reserved:
            return await threads.run(call, is_reserved=True)
        return await threads.run_in_turn(call, request.receive)

    return handle
