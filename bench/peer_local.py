"""Rows without a server: changes of rows beside DuckLake, task attempts, commands, lineage."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import startup
from bench.cases import Scale, Tell, Unavailable
from bench.catalog import publish_1
from bench.lineage import drawn
from bench.measuring import run_bench
from bench.peer_systems import DUCKLAKE, Lake, opened_lake
from bench.peers import OURS, Row, Side, Target, in_turns, medians, timed
from bench.pipelines import MASTER, open_store
from bench.places import filled
from bench.rows import fill
from bench.served import grow
from headgate.server.web.lineage_page import lineage_page
from headgate.store.embedded import Store
from tests.support.postgres import fresh_database, running_postgres
from tests.support.postgres_binaries import NO_POSTGRES, find_binaries
from tests.support.proxy import proxy_before

_LAKE = f"DuckLake {DUCKLAKE.version}"
_FIVE = 5
_TASK = """
from pathlib import Path

from pydantic import BaseModel

from headgate.tasks import WorkspaceSpec, task


class Which(BaseModel):
    path: str


class Nothing(BaseModel):
    pass


@task(name="touch", owner_email="bench@example.com", workspace=WorkspaceSpec())
def touch(workspace: Path, params: Which) -> Nothing:
    with (workspace / params.path).open("a") as file:
        file.write("changed")
    return Nothing()
"""


def rows_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure small changes of keyed tables in this process, each durable."""
    count, rounds = scale.of(10_000_000, 500_000), scale.of(30, 10)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        (home / "store").mkdir()
        (home / "lake").mkdir()
        store = stack.enter_context(open_store(home / "store"))
        fill(store, count, tell)
        lake: Lake | None = None
        note = ""
        try:
            lake = stack.enter_context(opened_lake(home / "lake"))
        except Unavailable as missing:
            note = str(missing)
        else:
            _fill_lake(lake, count)
        numbers = itertools.count(1000)

        def one(prefix: str) -> list[str]:
            return [f"insert into {prefix}hot0 values ({next(numbers)}, 1)"]

        def five(prefix: str) -> list[str]:
            tables = range(1, _FIVE + 1)
            return [f"insert into {prefix}hot{at} values ({next(numbers)}, 1)" for at in tables]

        def update(prefix: str) -> list[str]:
            id = next(numbers) * 7919 % count
            return [f"update {prefix}large set n = n + 1 where id = {id}"]

        cases = {
            "insert one row into a keyed table": one,
            f"insert a row into each of {_FIVE} tables, one publication": five,
            f"update one of {count:,} rows by key": update,
        }
        found = []
        for what, statements in cases.items():
            sides: dict[str, Side] = {OURS: partial(_mutate, store, statements)}
            if lake is not None:
                sides[_LAKE] = partial(_in_lake, lake, statements)
            figures = medians(in_turns(sides, rounds, warm_ups=3))
            targets = []
            if lake is not None:
                ratio = figures[OURS] / figures[_LAKE]
                targets = [Target(text=f"× {_LAKE}", value=ratio, limit=2)]
            found.append(
                Row(what=f"{what}, p50", unit="ms", figures=figures, targets=targets, note=note)
            )
        return found


def _mutate(store: Store, make: Callable[[str], list[str]]) -> list[float]:
    script = ";\n".join(make("rows."))
    return timed(lambda: store.mutate(MASTER, script))


def _in_lake(lake: Lake, make: Callable[[str], list[str]]) -> list[float]:
    return [lake(*make(""))]


def _fill_lake(lake: Lake, count: int) -> None:
    columns = "range AS id, range AS n, 'name-' || range AS name"
    lake(f"CREATE TABLE large AS SELECT {columns} FROM range({count})")
    for at in range(8):
        lake(f"CREATE TABLE hot{at} AS SELECT range AS id, 0::BIGINT AS n FROM range(8)")


def postgres_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure one publication on PostgreSQL, and count its round trips."""
    if find_binaries() is None:
        tell(f"PostgreSQL: skipped. {NO_POSTGRES}")
        return []
    # Small stores in both cases: the benchmark of the catalog measures growth.
    small = Scale(quick=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        server = stack.enter_context(running_postgres())
        proxy = stack.enter_context(proxy_before(server.port))
        direct = stack.enter_context(
            filled(small, tell, home / "direct", lambda: fresh_database(server))
        )
        passed = stack.enter_context(
            filled(
                *(small, tell, home / "passed"),
                lambda: fresh_database(server).replace(f":{server.port}/", f":{proxy.port}/"),
            )
        )
        [place, *_] = direct.values()
        [counted, *_] = passed.values()
        sides: dict[str, Side] = {
            OURS: lambda: timed(publish_1(place)),
            "one UPDATE, one COMMIT": lambda: timed(place.floor),
        }
        figures = medians(in_turns(sides, scale.of(100, 30), warm_ups=5))
        trips = []
        for _ in range(10):
            publication = publish_1(counted)
            before = proxy.round_trips
            publication()
            trips.append(proxy.round_trips - before)
    return [
        Row(
            what="publish 1 dataset on PostgreSQL, p50",
            unit="ms",
            figures=figures,
            targets=[
                Target(text="ms", value=figures[OURS], limit=2.5),
                Target(text="round trips", value=statistics.median(trips), limit=4),
            ],
            note="fsync is off on both sides",
        )
    ]


def task_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure the command that runs a task, for a large workspace and for one file."""
    rounds = scale.of(7, 3)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        root = Path(temporary)
        (root / "touching.py").write_text(_TASK)
        (root / "pyproject.toml").write_text("")
        with open_store(root) as store:
            for files in (5000, 1):
                tree = grow(root / f"tree-{files}", files)
                dataset = store.dataset(f"bench.tree{files}")
                dataset.create(kind="files", branch=MASTER).branch(MASTER).put(tree)
        numbers = itertools.count()

        def copy() -> None:
            target = root / f"copy-{next(numbers)}"
            subprocess.run(["cp", "-r", str(root / "tree-5000"), str(target)], check=True)
            subprocess.run(["rm", "-r", str(target)], check=True)

        constant = "the same with one file"
        figures = medians(
            in_turns(
                {
                    OURS: lambda: _attempt(root, 5000),
                    constant: lambda: _attempt(root, 1),
                    "cp -r and rm -r": lambda: timed(copy),
                },
                rounds,
            )
        )
    return [
        Row(
            what="`headgate task run`, 5,000 files, one changed",
            unit="ms",
            figures=figures,
            targets=[
                Target(text="ms", value=figures[OURS], limit=1200),
                Target(text="ms, one file", value=figures[constant], limit=500),
            ],
            note="Perago 0.6.1: its workspaces need a lakeFS server, not measured",
        )
    ]


def _attempt(root: Path, files: int) -> list[float]:
    name = f"bench.tree{files}"
    with open_store(root) as store:
        view = store.dataset(name).branch(MASTER).load().view
    workspace = {"repository": name, "branch": MASTER, "ref_type": "commit", "ref": view}
    given = {"workspace": workspace, "params": {"path": "d0000/f000000"}}
    (root / "input.json").write_text(json.dumps(given))
    words = [*startup.HEADGATE, "task", "run", "touching", "--input", "input.json"]
    return timed(lambda: startup.run(words, root))


def command_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure two commands beside the interpreter."""
    results = {r.case: r.samples[""].p50_ms for r in run_bench(startup.START, scale, tell)}
    limits = {"headgate branch list": 250, "headgate sql": 1000}
    return [
        Row(
            what=f"`{case}`, a process" if case != "headgate sql" else f"`{case}` with a count",
            unit="ms",
            figures={OURS: results[case], "bare Python": results["python"]},
            targets=[Target(text="ms", value=results[case], limit=limit)],
        )
        for case, limit in limits.items()
    ]


def lineage_rows(scale: Scale, tell: Tell) -> list[Row]:
    """Measure the lineage page of many datasets."""
    with drawn([2000], tell) as found:
        [one] = found.values()
        pages = {branch: lineage_page(one.visit(branch)) for branch in (MASTER, "feature")}
        size = max(sum(len(s.encode()) for s in p.sections.values()) for p in pages.values())
        sides: dict[str, Side] = {
            OURS: lambda: timed(lambda: lineage_page(one.visit(MASTER))),
            "all stale": lambda: timed(lambda: lineage_page(one.visit("feature"))),
        }
        figures = medians(in_turns(sides, scale.of(15, 5), warm_ups=2))
    return [
        Row(
            what="lineage page of 2,000 datasets, all fresh",
            unit="ms",
            figures=figures,
            targets=[
                Target(text="ms, the slower", value=max(figures.values()), limit=400),
                Target(text="kB", value=size / 1000, limit=300),
            ],
        )
    ]
