"""A small shop behind a real server, for the tests of pages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa

from headgate.connection import open as open_store
from headgate.store.embedded import Store
from tests.support.repositories import Work, new_repository
from tests.support.serving import first_token
from tests.support.shell import headgate_json
from tests.support.stores import files_branch, put
from tests.support.tables import create_tables, iceberg_client

CLEAN = """\
from headgate.transforms import Check, Input, Output, expectations as E, transform_df

@transform_df(
    Output("shop.clean", checks=[
        Check(E.primary_key("id"), "one row for each order"),
        Check(E.col("amount").lt(50), "no large orders", on_error="WARN"),
    ]),
    orders=Input("shop.orders"),
)
def clean(orders):
    return orders.where("amount > 0")
"""
DAILY = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.daily"), clean=Input("shop.clean"))
def daily(clean):
    sums = clean.groupBy("customer").agg({"amount": "sum"})
    return sums.withColumnRenamed("sum(amount)", "total")
"""
BROKEN = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.broken"), orders=Input("shop.orders"))
def broken(orders):
    raise ValueError("no such customer: 42")
"""
ORDERS = [{"id": i, "customer": f"c{i % 7}", "amount": i * 1.5} for i in range(40)]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A served store: its address, its token, and the repository of its transforms."""

    url: str
    token: str
    root: Path
    work: Work

    def open(self) -> Store:
        """Open the store itself, as from a shell beside the server."""
        return open_store(self.root)


def make_shop(root: Path) -> Work:
    """Create tables and files on master, a branch that differs, and transforms on both."""
    work = new_repository(root)
    work.write(pipeline__clean=CLEAN, pipeline__daily=DAILY, pipeline____init__="")
    work.write_file(".gitignore", ".headgate/\nheadgate.toml\n")
    work.commit("clean and daily")
    headgate_json("init", cwd=root)
    with open_store(root) as store:
        create_tables(store, "master", orders=ORDERS, customers=[{"id": 1, "name": "Ana"}])
        scans = files_branch(store)
        put(scans, **{"2026/a.csv": "a,b\n1,2\n", "2026/b.csv": "x", "readme.md": "hello"})
        put(scans, **{"2026/c.csv": "more"})
        store.dataset("shop.orders").branch("feature").create(parent="master")
        with iceberg_client(store, "feature>master") as client:
            new = [{"id": 100, "customer": "c1", "amount": 2.5}]
            client.load_table("shop.orders").append(pa.Table.from_pylist(new))
        store.publish_jobspecs(work.root)
        work.git("checkout", "--quiet", "-b", "feature")
        work.write(pipeline__broken=BROKEN)
        work.commit("a transform that fails")
        store.publish_jobspecs(work.root)
    return work


@contextmanager
def serving_site(root: Path) -> Iterator[Site]:
    """Serve the shop by `headgate serve` in a process, stopped as an operator would."""
    work = make_shop(root)
    with serving(root) as (url, token, _):
        assert token is not None
        yield Site(url=url, token=token, root=root, work=work)


@contextmanager
def serving(
    root: Path, *options: str, log: Path | None = None
) -> Iterator[tuple[str, str | None, subprocess.Popen[str]]]:
    """Serve a store; yield its URL, the token that it made, and its process."""
    port = _free_port()
    errors = (log or root / "serve.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "serve", "--port", str(port), "--json", *options],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    try:
        told = json.loads(process.stdout.readline())
        _await(f"{url}/healthz")
        yield url, first_token(told), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        process.stdout.close()
        errors.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _await(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            assert httpx.get(url, timeout=60).status_code == 200
            return
        except httpx.ConnectError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.1)
