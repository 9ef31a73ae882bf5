"""TPC-H: ten dependent tables through a branch's endpoint, and on Iceberg's own Hadoop catalog.

Both catalogs are in one Spark session, hold the same rows in the same files, and run the same
statements in turns, so that only the catalog differs.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases import Bench, Scale, Tell, Timed, Unavailable
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.errors import SparkUnavailable
from headgate.settings import load_settings
from headgate.spark.session import CATALOG
from headgate.store.embedded import Store

PLAIN = "plain"
SOURCES = (
    *("customer", "lineitem", "nation", "orders"),
    *("part", "partsupp", "region", "supplier"),
)
# Each table reads earlier ones, and is named after its content.
STEPS = {
    "sales": """
        select l_orderkey, l_partkey, l_suppkey, o_custkey, o_orderdate, l_quantity,
               l_extendedprice * (1 - l_discount) as revenue
        from {c}.source.lineitem join {c}.source.orders on l_orderkey = o_orderkey
        where l_returnflag <> 'R'""",
    "places": """
        select n_nationkey, n_name, r_name
        from {c}.source.nation join {c}.source.region on n_regionkey = r_regionkey""",
    "customer_sales": """
        select o_custkey, count(*) as lines, sum(revenue) as revenue
        from {c}.made.sales group by o_custkey""",
    "customers": """
        select c_custkey, c_name, c_mktsegment, n_name, r_name, lines, revenue
        from {c}.source.customer
        join {c}.made.customer_sales on c_custkey = o_custkey
        join {c}.made.places on c_nationkey = n_nationkey""",
    "part_sales": """
        select l_partkey, l_suppkey, sum(l_quantity) as quantity, sum(revenue) as revenue
        from {c}.made.sales group by l_partkey, l_suppkey""",
    "margins": """
        select l_partkey, l_suppkey, revenue - quantity * ps_supplycost as margin
        from {c}.made.part_sales
        join {c}.source.partsupp on l_partkey = ps_partkey and l_suppkey = ps_suppkey""",
    "brands": """
        select p_brand, p_type, sum(margin) as margin
        from {c}.made.margins join {c}.source.part on l_partkey = p_partkey
        group by p_brand, p_type""",
    "suppliers": """
        select s_suppkey, s_name, n_name, sum(margin) as margin
        from {c}.made.margins
        join {c}.source.supplier on l_suppkey = s_suppkey
        join {c}.made.places on s_nationkey = n_nationkey
        group by s_suppkey, s_name, n_name""",
    "months": """
        select r_name, trunc(o_orderdate, 'MM') as month, sum(s.revenue) as revenue
        from {c}.made.sales s join {c}.made.customers on o_custkey = c_custkey
        group by r_name, trunc(o_orderdate, 'MM')""",
    "trends": """
        select r_name, month, revenue,
               revenue / lag(revenue) over (partition by r_name order by month) as change
        from {c}.made.months""",
}


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """One of the two catalogs, by its name in the session that both are in."""

    session: Any
    name: str

    def run(self) -> None:
        """Run the whole pipeline."""
        for table, query in STEPS.items():
            text = query.format(c=self.name)
            self.session.sql(f"create or replace table {self.name}.made.{table} as {text}")


@contextmanager
def _catalogs(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Catalog]]:
    factor = scale.tpch_factor or (0.01 if scale.quick else 1.0)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        start = time.monotonic()
        generate(root / "tpch", factor)
        with open_empty_store(root) as store:
            session = _session(store)
            for option, value in plain_catalog(root / "plain").items():
                session.conf.set(option, value)
            for name in (PLAIN, CATALOG):
                fill(session, name, root / "tpch")
            tell(f"pipeline: TPC-H by {factor:g}, twice, in {time.monotonic() - start:.1f} s")
            yield {
                "Hadoop catalog": Catalog(session=session, name=PLAIN),
                "branch endpoint": Catalog(session=session, name=CATALOG),
            }


def _session(store: Store) -> Any:
    try:
        return store.spark("bench>master")
    except SparkUnavailable as error:
        raise Unavailable(error.message) from error


def open_empty_store(root: Path) -> Store:
    environ = {**os.environ, "HEADGATE_STORE_CATALOG": ".headgate/catalog.db"}
    environ.pop("HEADGATE_URL", None)
    (root / ".headgate").mkdir()
    settings = load_settings(root, environ)
    with closing(Database(settings.catalog)) as database:
        ensure_schema(database, create=True)
    return Store(settings)


def generate(directory: Path, factor: float) -> None:
    """Generate the tables of TPC-H as Parquet files."""
    command = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    if not command.is_file():
        raise Unavailable("tpchgen-cli is not installed; `make setup` installs it.")
    words = ["parquet", "-s", f"{factor:g}", "--output-dir", str(directory)]
    subprocess.run([command, *words], check=True, capture_output=True)


def plain_catalog(warehouse: Path) -> dict[str, str]:
    """Return the settings of Iceberg's own catalog, in which a table is a directory."""
    prefix = f"spark.sql.catalog.{PLAIN}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "hadoop",
        f"{prefix}.warehouse": str(warehouse),
        f"{prefix}.cache-enabled": "false",
    }


def fill(session: Any, catalog: str, directory: Path) -> None:
    """Create the tables of TPC-H in a catalog of the session."""
    for namespace in ("source", "made"):
        session.sql(f"create namespace {catalog}.{namespace}")
    for table in SOURCES:
        frame = session.read.parquet(str(directory / f"{table}.parquet"))
        frame.writeTo(f"{catalog}.source.{table}").using("iceberg").create()


PIPELINE: Bench[Catalog] = Bench(
    "TPC-H pipeline",
    _catalogs,
    repetitions=7,
    quick_repetitions=7,
    warm_ups=1,
    counts_sql=False,
)


@PIPELINE.case(f"{len(STEPS)} dependent tables", target_ratio=1.05)
def _run(catalog: Catalog) -> Timed:
    return catalog.run
