"""Every page of a store with all kinds of objects: each link leads somewhere, no page fails."""

from __future__ import annotations

import datetime
import decimal
import html
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.builds.attempt import log_in
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import JobRecord, end_build_in, record_build_in
from headgate.catalog.database import Connection
from headgate.model.access import Grant, Role
from headgate.model.ids import mint_build
from headgate.model.names import DatasetName
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import build_page, builds_page
from headgate.server.web.dataset_page import dataset_page
from headgate.server.web.datasets_page import datasets_page
from headgate.server.web.host import make_safely
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.log_page import log_page
from headgate.server.web.page import PageMaker, Visit
from headgate.server.web.review_page import review_page
from headgate.store.embedded import Store
from tests.support.iceberg import Front, Served
from tests.support.metadata import change, column, schema, table
from tests.support.pages import text_of
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import files_branch, load, new_store, put
from tests.support.tables import create_tables, iceberg_client
from tests.support.views import make_view

MAKERS: dict[str, PageMaker] = {
    "/": datasets_page,
    "/datasets": dataset_page,
    "/branches": branches_page,
    "/lineage": lineage_page,
    "/builds": builds_page,
    "/log": log_page,
    "/review": review_page,
}
_HREF = re.compile(r'href="([^"#][^"]*)"')
_MOST_PAGES = 2_000
ODD = ("a/b", "a.b", "a b", "ünï 名 ☃", "q?x=1&y#z", "<b>", "50%41", "'\"", "a>b@1", "n" * 200)
ODD_BRANCH = "b/" + "n" * 198
_NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 1, tzinfo=datetime.UTC)
VALUES: dict[str, tuple[IcebergType, object]] = {
    "flag": (BooleanType(), True),
    "small": (IntegerType(), -(2**31)),
    "large": (LongType(), 2**63 - 1),
    "half": (FloatType(), 0.5),
    "endless": (DoubleType(), float("inf")),
    "money": (DecimalType(38, 9), decimal.Decimal("123456789.123456789")),
    "day": (DateType(), _NOON.date()),
    "hour": (TimeType(), _NOON.time()),
    "local": (TimestampType(), _NOON.replace(tzinfo=None)),
    "instant": (TimestamptzType(), _NOON),
    "words": (StringType(), "<b>&\"'" + "long " * 2000),
    "nothing": (StringType(), ""),
    "id16": (UUIDType(), uuid.UUID(int=5).bytes),
    "four": (FixedType(4), b"\x00\xff\x01\x02"),
    "raw": (BinaryType(), b"\xff" * 3000),
}


# Types of format version 3, of which some can only be read by Spark.
NEW_TYPES = (
    *("variant", "unknown", "geometry", "geography(OGC:CRS84, spherical)"),
    *("timestamp_ns", "timestamptz_ns"),
)


def _register_new_types(store: Store) -> None:
    """Register tables with each type of version 3, and with all of them, nested too."""
    nested = {"type": "list", "element-id": 98, "element": "variant", "element-required": False}
    wanted: dict[str, list[Any]] = {f"v3_{at}": [kind] for at, kind in enumerate(NEW_TYPES)}
    for name, kinds in {**wanted, "v3_all": [*NEW_TYPES, nested]}.items():
        columns = [column(at, f"c{at}", kind) for at, kind in enumerate(kinds, start=1)]
        file = store.settings.root / f"{name}.metadata.json"
        file.write_bytes(orjson.dumps(table(version=3, schema=schema(*columns))))
        store.dataset(f"new.{name}").register(str(file), branch="master")
        store.dataset(f"new.{name}").branch("feature/x.y").create(parent="master")


def _all_types() -> tuple[Schema, pa.Table]:
    fields = [
        NestedField(at, name, kind) for at, (name, (kind, _)) in enumerate(VALUES.items(), start=1)
    ]
    deep = StructType(
        NestedField(31, "x y", LongType()),
        NestedField(32, "tags", ListType(33, StringType(), element_required=False)),
    )
    fields += [
        NestedField(20, "list", ListType(21, LongType(), element_required=False)),
        NestedField(22, "map", MapType(23, StringType(), 24, deep, value_required=False)),
        NestedField(30, "struct.with <dots>", StructType(NestedField(34, "a", LongType()))),
    ]
    schema = Schema(*fields)
    row = {name: value for name, (_, value) in VALUES.items()}
    row |= {"list": [1, None], "map": [("k", {"x y": 1, "tags": ["t"]})]}
    row["struct.with <dots>"] = {"a": None}
    empty = dict.fromkeys(row)
    return schema, pa.Table.from_pylist([row, empty], schema.as_arrow())


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path, front: Front) -> Iterator[Store]:
    with new_store(made_sqlite_url, tmp_path) as made:
        fill_odd(made, front)
        fill(made)
        yield made


def fill(store: Store) -> None:
    """Make tables of all types, files, dropped and renamed datasets, branches of all states."""
    _register_new_types(store)
    create_tables(store, "master", orders=[{"id": 1, "name": "a"}], übung=[{"ä ö": 1}])
    with iceberg_client(store, "master") as client:
        schema, rows = _all_types()
        client.create_table("shop.all_types", schema).append(rows)
        client.create_table("shop.empty", schema)
        client.create_table("shop.old", schema).append(rows)
    _hold_a_job(store)
    scans = files_branch(store)
    put(scans, **{"2026/ä b?#&.csv": "a", "readme.md": "hello", "2026/x/y.txt": ""})
    files_branch(store, "raw.nothing")
    for name in ("shop.all_types", "shop.orders", "shop.old", "raw.scans"):
        for branch in ("feature/x.y", "gone", "empty"):
            store.dataset(name).branch(branch).create(parent="master")
    store.dataset("shop.orders").branch("alone").create()
    view = store.dataset("shop.orders").branch("master").load().view
    store.dataset("shop.orders").tag("release-1", at=str(view))
    store.dataset("shop.orders").branch("second").create(parent="feature/x.y")
    with iceberg_client(store, "feature/x.y") as client:
        client.load_table("shop.all_types").append(_all_types()[1])
        client.drop_table("shop.old")
        client.load_table("shop.orders").append(pa.table({"id": [2], "name": ["b"]}))
    put(store.dataset("raw.scans").branch("feature/x.y"), **{"readme.md": "other"})
    with iceberg_client(store, "gone") as client:
        client.load_table("shop.orders").append(pa.table({"id": [3], "name": ["c"]}))
    for name in ("shop.all_types", "shop.orders", "shop.old", "raw.scans"):
        store.dataset(name).branch("gone").delete()
    publish(store, "master", files_spec("s.made", "raw.scans"), files_spec("s.held", logic="2"))
    publish(store, "feature/x.y", files_spec("s.other", "raw.scans", logic="2"))
    scans.transaction("APPEND")
    store.protect("master")
    store.create_token(actor="bo", role=Role.READER)
    for state in ("running", "succeeded", "failed", "canceled"):
        record_build(store, state)


def _hold_a_job(store: Store) -> None:
    """Build s.held, reset the result away, and build it again: its job is held."""
    for logic in ("1", "2"):
        publish(store, "master", files_spec("s.held", logic=logic))
        build(store, "s.held")
    branch = store.dataset("s.held").branch("master")
    branch.reset(to=branch.history()[1].id)
    [job] = build(store, "s.held").jobs
    assert job.reason.value == "held"


def fill_odd(store: Store, front: Front) -> None:
    """Make odd names, a renamed table and its branch, views, and rows in format version 3."""
    schema, rows = _all_types()
    with iceberg_client(store, "master") as client:
        client.create_namespace("shop")
        client.create_table("shop.before", schema).append(rows)
        store.dataset("shop.before").branch("other").create(parent="master")
        client.rename_table("shop.before", "shop.after")
        client.load_table("shop.after").append(rows)
        client.create_namespace("odd")
        for name in ODD:
            table = pa.table({name: [1], f"{name} 2": ["x"]})
            client.create_table(("odd", name), table.schema).append(table)
            files = files_branch(store, f"files.`{name}`")
            put(files, **{f"{name.replace('/', '-')}.csv": name})
            files.dataset.branch(ODD_BRANCH).create(parent="master")
            files.dataset.tag(f"tag-{ODD.index(name)}", at=str(files.load().view))
    written = store.tables.read(str(_version(store, "shop.after"))).metadata
    upgrade = {"action": "upgrade-format-version", "format-version": 3}
    file = store.settings.root / "v3_rows.metadata.json"
    file.write_bytes(orjson.dumps(change(dict(written), upgrade)))
    store.dataset("new.rows").register(str(file), branch="master")
    with Served(store, front).client() as master:
        master.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
        for name in ("v", "v 2/ü"):
            make_view(master, name)
    store.dataset("db.v").branch(ODD_BRANCH).create(parent="master")


def _version(store: Store, name: str) -> str:
    view = store.dataset(name).branch("master").load().view
    version = load(store, view).version if view else None
    assert version is not None
    return version.location


def record_build(store: Store, state: str) -> None:
    """Record a build with jobs of all states, without running it."""
    id = mint_build()
    log = log_in(store.settings.root / ".headgate" / "work" / "builds" / id)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number} of the log\n" for number in range(200)))
    attempt = dispatch_attempt(store.database, id, actor="bo", lease_seconds=600).ref
    given = {"dataset": "raw.scans", "branch": "master", "transaction": None}
    gone = {"dataset": "raw.scans", "branch": "gone", "transaction": None}
    error = {"error": "user_code_failed", "message": "no " * 400, "file": "a.py", "line": 3}
    jobs = [
        JobRecord(
            ordinal=at,
            reason="never-built",
            attempts=at,
            state=job,
            body={
                "outputs": ["s.made" if at else "gone.dataset"],
                "state": job,
                "reason": "never-built",
                "jobspec_branch": "master",
                "attempts": at,
                "inputs": [given, gone],
                "error": error if job == "failed" else None,
                "log": str(log),
            },
        )
        for at, job in enumerate(("succeeded", "failed", "aborted", "skipped", "adopted"))
    ]
    body = {"targets": ["s.made", "gone.dataset", "raw.scans"], "fallback": ["master", "gone"]}

    def write(connection: Connection) -> None:
        record_build_in(
            connection,
            id=id,
            branch="gone",
            actor="bo",
            attempt=attempt,
            body=body,
            planned=jobs,
        )
        if state != "running":
            end_build_in(connection, id, state)

    store.database.write(write)


def visit_of(store: Store, href: str, grant: Grant) -> tuple[PageMaker, Visit]:
    parts = urlsplit(href)
    first, _, rest = parts.path.lstrip("/").partition("/")
    maker = MAKERS[f"/{first}"]
    if first == "builds" and rest:
        maker = build_page
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    named = store.acting_for(grant)
    return maker, Visit(
        store=named, grant=grant, subject=unquote(rest), query=query, path=parts.path
    )


def crawl(store: Store, grant: Grant) -> dict[str, str]:
    """Follow every link from every place of the navigation; return the pages by address."""
    waiting = [path for path in MAKERS if path != "/datasets"]
    pages: dict[str, str] = {}
    broken: list[str] = []
    while waiting and len(pages) < _MOST_PAGES:
        href = waiting.pop()
        if href in pages:
            continue
        maker, visit = visit_of(store, href, grant)
        found = make_safely(maker, visit)
        pages[href] = text_of(found)
        if found.status != 200:
            broken.append(f"{found.status} {href}: {pages[href][:300]}")
        links = [html.unescape(link) for link in _HREF.findall(pages[href])]
        waiting += [link for link in links if not link.startswith("/assets")]
    assert broken == [] and not set(waiting) - pages.keys()
    return pages


def test_pages_of_a_rich_store_have_no_dead_link(store: Store) -> None:
    pages = crawl(store, Grant(actor="ana", role=Role.ADMIN))
    assert len(pages) > 600
    everything = "".join(pages.values())
    assert "123456789.123456789" in everything and "gone" in pages["/log"]
    odd = [DatasetName(namespace=(space,), name=n) for space in ("odd", "files") for n in ODD]
    for name in ("shop.after", "new.rows", "db.v", "s.held", *map(str, odd)):
        assert any(name in unquote(address) for address in pages), name
    assert "123456789.123456789" in pages["/datasets/new.rows"]
    assert "held" in pages["/lineage"] and any(ODD_BRANCH in unquote(href) for href in pages)


def test_pages_of_a_limited_reader_link_only_to_what_they_may_read(store: Store) -> None:
    grant = Grant(
        actor="rea",
        role=Role.READER,
        branches=(),
        reads=("master", "gone"),
        datasets=("shop.*", "s.*", "db.*"),
    )
    pages = crawl(store, grant)
    assert len(pages) > 60
    assert not any("raw.scans" in unquote(address) for address in pages)
    assert not any("feature/x.y" in unquote(address) for address in pages)


def test_datasets_page_finds_names_with_all_words(store: Store) -> None:
    _, visit = visit_of(store, "/?q=TYPES+shop", Grant(actor="ana", role=Role.READER))
    page = text_of(datasets_page(visit))
    assert "1 dataset with" in page and "shop.all_types" in page
