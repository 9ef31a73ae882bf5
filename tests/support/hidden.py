"""A store of which a limited token may read a part; every other name and content says "hush"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, update

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import JobRecord, record_build_in
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.catalog.records import dump
from headgate.catalog.schema import transactions
from headgate.model.ids import BuildId
from headgate.store.embedded import Store
from tests.support.jobspecs import spec
from tests.support.stores import files_branch, put

WORD = "hush"
MAIN = "main"
SCHEMA = '[dataset."{table}"]\ncolumns = {{id = "string"}}\nkey = ["id"]\n'


@dataclass(frozen=True, kw_only=True)
class HiddenWorld:
    """Ids of the objects that a limited token may not read, and of some that it may."""

    store: Store
    hidden_transaction: str
    hidden_open: str
    hidden_unit: str
    hidden_root: str
    hidden_content: str
    hidden_build: str
    hidden_publication: int
    shown_transaction: str
    shown_build: str
    shown_root: str
    shown_content: str


def make_hidden_world(store: Store) -> HiddenWorld:
    """Create datasets, branches, JobSpecs, builds and events, some of them hidden."""
    orders = files_branch(store, "gold.orders", MAIN)
    shown = put(orders, **{"a.txt": "public"})
    dataset = orders.dataset
    dataset.branch("ana/x").create(MAIN)
    plan = dataset.branch("hush/plan").create(MAIN)
    hidden = put(plan, **{"hush.txt": "hush bytes"})
    number = store.publications(limit=1)[0].number
    dataset.tag("v1", at=shown)
    dataset.tag("hush-tag", at=hidden)
    dataset.branch("ana/x").reparent("hush/plan")
    put(files_branch(store, "hush.scans", MAIN), **{"hush.txt": "hush bytes too"})
    for table, row in (("gold.sales", "s1"), ("hush.payroll", "hush-row")):
        store.rows.apply_schema_text(SCHEMA.format(table=table), file="s.toml", branch=MAIN)
        store.load(MAIN, {table: [{"id": row}]}, idempotency_key=f"hush-{table}")
    store.rows.apply_schema_text(
        SCHEMA.format(table="gold.apart"), file="s.toml", branch=f"hush/plan>{MAIN}"
    )
    store.dataset("hush.scans").branch("ana/gone").create(MAIN)
    store.delete_everywhere("ana/gone")
    opened = plan.transaction("UPDATE").id
    unit = store.transaction("hush/plan").id
    store.protect("hush/plan")
    _publish_specs(store)
    builds = [_record_build(store, branch) for branch in (MAIN, "hush/plan")]
    store.database.write(lambda c: _taint(c, shown))
    [entry] = plan.files("hush.txt")
    [public] = orders.files("a.txt")
    view, visible = plan.view(), orders.view()
    assert view is not None and view.version is not None
    assert visible is not None and visible.version is not None
    return HiddenWorld(
        store=store,
        hidden_transaction=hidden,
        hidden_open=opened,
        hidden_unit=unit,
        hidden_root=view.version.location,
        hidden_content=entry.digest,
        hidden_build=builds[1],
        hidden_publication=number,
        shown_transaction=shown,
        shown_build=builds[0],
        shown_root=visible.version.location,
        shown_content=public.digest,
    )


def _publish_specs(store: Store) -> None:
    on_main = [
        spec("gold.report", "gold.sales", "hush.payroll"),
        spec("gold.plain", "gold.sales"),
        spec("hush.out", "gold.sales"),
    ]
    for branch, specs in ((MAIN, on_main), ("hush/plan", [spec("gold.plain", "hush.payroll")])):
        publish_jobspecs(
            store.database,
            branch=branch,
            repository="example",
            commit="c0ffee",
            clean=True,
            actor="ana",
            specs=[
                {"outputs": [str(o.dataset) for o in one.outputs], "jobspec": one.to_json()}
                for one in specs
            ],
        )


def _record_build(store: Store, branch: str) -> str:
    id = BuildId(f"build-of-{branch.replace('/', '-')}")
    attempt = dispatch_attempt(
        store.database, id, actor="ana", lease_seconds=900, scope={"branch": branch}
    ).ref
    planned = [
        _job(0, "gold.plain", ["gold.sales"]),
        _job(1, "gold.report", ["gold.sales", "hush.payroll"]),
        _job(2, "hush.out", ["gold.sales"]),
        _job(3, "gold.other", ["gold.sales"], read_on="hush/plan"),
    ]
    planned = [
        replace(job, body={**job.body, "log": _write_log(store, id, job)}) for job in planned
    ]
    body = {
        "targets": ["gold.report", "hush.out"],
        "fallback": [MAIN, "hush/plan"],
        "upstream": False,
        "atomic": False,
        "parameters": {},
    }
    store.database.write(
        lambda c: record_build_in(
            c, id=id, branch=branch, actor="ana", attempt=attempt, body=body, planned=planned
        )
    )
    return id


def _write_log(store: Store, build: str, job: JobRecord) -> str:
    log = store.scratch / "builds" / build / str(job.ordinal) / "job.log"
    log.parent.mkdir(parents=True)
    log.write_text("hush rows\n" if "error" in job.body else "public rows\n")
    return str(log)


def _job(ordinal: int, output: str, inputs: list[str], read_on: str = MAIN) -> JobRecord:
    is_tainted = any(name.startswith(WORD) for name in (output, *inputs, read_on))
    body: dict[str, Any] = {
        "outputs": [output],
        "state": "failed",
        "reason": "stale-input",
        "jobspec_branch": MAIN,
        "inputs": [{"dataset": name, "branch": read_on, "transaction": "t-1"} for name in inputs],
        "attempts": 1,
        "spark_jobs": 0,
        "transactions": {output: "t-2"},
        "adopted_from": {"branch": "hush/plan", "transactions": {output: "t-3"}},
    }
    if is_tainted:
        body |= {"error": {"message": "hush failed", "kind": "ValueError"}}
    return JobRecord(ordinal=ordinal, state="failed", reason="stale-input", attempts=1, body=body)


def _taint(connection: Connection, transaction: str) -> None:
    """Give a transaction that may be read a provenance that names what may not."""
    check = {
        "name": "c",
        "stage": "pre",
        "dataset": "hush.payroll",
        "on_error": "FAIL",
        "passed": False,
        "expectation": "e",
        "reason": "r",
        "samples": [{"id": "hush-row"}],
    }
    facts = {
        "build": "build-of-main",
        "job": "gold.orders",
        "inputs": [{"dataset": "hush.payroll", "branch": MAIN, "transaction": "t-1"}],
        "adopted_from": {"transaction": "t-4", "branch": "hush/plan"},
        "checks": [check],
    }
    connection.execute(
        update(transactions).where(transactions.c.id == transaction).values(provenance=dump(facts))
    )
