"""Concurrent clients of a server for a minute; the server is killed and restarted half-way."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

from bench.cases import Scale, Tell
from bench.measuring import Result, Sample
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.served_crowd import Heard, check, prepare, run_crowd
from tests.support.serving import ServerProcess

NAME = "a server and its clients"
_KINDS = ("read file", "read history", "read log", "upload", "publish")
_CLIENTS, _QUICK_CLIENTS = 64, 8
_SECONDS, _QUICK_SECONDS = 60, 6


def run_served_crowd(scale: Scale, tell: Tell, *, only: str | None = None) -> list[Result]:
    """Time each kind of request as clients see it; fail if a write is lost or doubled."""
    kinds = [kind for kind in _KINDS if only is None or only.lower() in f"{NAME} {kind}".lower()]
    if not kinds:
        return []
    clients = scale.of(_CLIENTS, _QUICK_CLIENTS)
    seconds = scale.of(_SECONDS, _QUICK_SECONDS)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        heard = _crowd(Path(home), clients, seconds, tell)
    subject = f"{clients} clients"
    return [
        Result(
            bench=NAME,
            case=kind,
            samples={subject: Sample(times_ms=heard.took_ms[kind])},
            target_ms=None,
            flat=False,
        )
        for kind in kinds
    ]


def _crowd(root: Path, clients: int, seconds: int, tell: Tell) -> Heard:
    (root / "headgate.toml").write_text('[store]\ncatalog = "catalog.db"\nwarehouse = "bytes"\n')
    settings = load_settings(root)
    database = Database(settings.catalog)
    ensure_schema(database, create=True)
    database.close()
    with Store(settings) as store, ServerProcess(root) as server:
        token = prepare(store)
        end = time.monotonic() + seconds

        def kill(_: Heard) -> None:
            nonlocal end
            time.sleep(seconds / 2)
            began = time.monotonic()
            # No client stops until the server is up again; the downtime does not count.
            end = float("inf")
            server.end(signal.SIGKILL)
            server.start()
            end = time.monotonic() + seconds / 2
            tell(f"{NAME}: up again after {time.monotonic() - began:.1f} s")

        heard = run_crowd(
            server.url,
            token,
            clients=clients,
            goes_on=lambda _: time.monotonic() < end,
            meanwhile=kill,
        )
        check(store, heard)
        requests = sum(len(times) for times in heard.took_ms.values())
        tell(
            f"{NAME}: {clients} clients, {seconds} s, killed once: {requests} requests, "
            f"{heard.asked_again} asked again, {len(heard.told)} publications, each once"
        )
    return heard
