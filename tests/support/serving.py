"""`headgate serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.spark_servers import free_port

# A busy machine may be slow; only a failure takes this long.
_START_SECONDS = 150


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A server on the store of a directory: its URL, its first token, its process."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "serve", "--port", str(port), "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        wait_until_healthy(f"http://127.0.0.1:{port}/healthz")
        yield told["url"], first_token(told), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def first_token(told: Mapping[str, Any]) -> Any:
    """The token that a server wrote to a file at its first start; None at a later start."""
    file = told["token_file"]
    return Path(file).read_text().strip() if file is not None else None


class ServerProcess:
    """A server that can be killed and restarted at the same address; its log is in a file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log = root / "serve.log"
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate", "serve", "--port", str(self._port)],
                cwd=self._root,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
                stdout=log,
                stderr=log,
            )
        try:
            wait_until_healthy(f"{self.url}/healthz")
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def end(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Stop the server, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(with_signal)
        return self._process.wait(timeout=60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


def wait_until_healthy(url: str) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            assert httpx.get(url, timeout=60).status_code == 200
            return
        except httpx.ConnectError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)
