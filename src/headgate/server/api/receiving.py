"""A body as it arrives, on disk rather than in memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from headgate.files.objects import Digest

# Larger writes mean fewer turns on a worker thread.
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Received:
    path: Path
    digest: Digest
    size: int


@asynccontextmanager
async def received(request: Request, directory: Path) -> AsyncIterator[Received]:
    """The whole body in a file, with its digest; the file is gone when the block ends."""
    directory.mkdir(parents=True, exist_ok=True)
    seen, size, buffer = hashlib.sha256(), 0, bytearray()
    with tempfile.NamedTemporaryFile(dir=directory, prefix="upload-") as file:

        def flush() -> None:
            seen.update(buffer)
            file.write(buffer)
            buffer.clear()

        async for chunk in request.stream():
            size += len(chunk)
            buffer += chunk
            if len(buffer) >= _BUFFER_BYTES:
                await run_in_threadpool(flush)
        await run_in_threadpool(flush)
        file.flush()
        yield Received(path=Path(file.name), digest=Digest(seen.hexdigest()), size=size)
