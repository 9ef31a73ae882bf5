"""A real S3-compatible server for tests, in a process of its own, ended by its pid."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from headgate.settings import Settings
from tests.support.stores import new_settings

VENDED, SIGNING = "vended-credentials", "remote-signing"
_PROGRAM = Path(__file__).with_name("s3_server.py")
_START_SECONDS = 120
_STOP_SECONDS = 10
_TRIES = 3


class S3Failed(Exception):
    """The server did not start; the message ends with its output."""


class S3Server:
    """One server on a loopback port, holding its buckets in memory."""

    def __init__(self, *, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.endpoint = f"http://127.0.0.1:{port}"

    @property
    def options(self) -> Mapping[str, str]:
        """Variables that a client needs to reach the server, by their standard names."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }

    def create_bucket(self) -> str:
        """Create an empty bucket, and return its name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        # Unsigned on purpose: the server checks no signature, and no client library is needed.
        httpx.put(f"{self.endpoint}/{name}", trust_env=False, timeout=60).raise_for_status()
        return name

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)


def delegating_settings(catalog: str, directory: Path, server: S3Server) -> Settings:
    """Return the settings of a store in a new bucket that gives access in both ways."""
    return replace(
        new_settings(catalog, directory),
        warehouse=f"s3://{server.create_bucket()}/ware house",
        environ=server.options,
        access_delegation=(VENDED, SIGNING),
        sts_role_arn="arn:aws:iam::123456789012:role/headgate",
    )


@contextmanager
def running_s3(home: Path, *words: str) -> Iterator[S3Server]:
    """Run a server for the length of the block; its output goes to a file in `home`.

    With the word `enforce` it checks signatures and session policies.
    """
    server = _start_on_some_port(home / "s3.log", words)
    try:
        yield server
    finally:
        server.stop()


def _start_on_some_port(log: Path, words: Sequence[str]) -> S3Server:
    for _ in range(_TRIES):
        # Another process may take the port before the server does, hence more than one try.
        port = _free_port()
        command = [sys.executable, str(_PROGRAM), str(port), *words]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        server = S3Server(process=process, port=port)
        if _answers(server.endpoint, process):
            return server
        server.stop()
    raise S3Failed(f"the S3 server did not start:\n{log.read_text()[-2000:]}")


def _answers(endpoint: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return httpx.get(f"{endpoint}/moto-api/", trust_env=False, timeout=60).is_success
        except httpx.TransportError:
            time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
