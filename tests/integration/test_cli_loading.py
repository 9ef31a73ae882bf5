"""Modules that a command imports: each unnecessary one delays every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.main import block_pandas
from tests.support.cli import Cli, new_store_cli
from tests.support.source import PACKAGE

_SCHEMA = """
[dataset."g.p"]
columns = {id = "string", n = "int"}
key = ["id"]
"""


def _loaded_by(directory: Path, *words: str) -> set[str]:
    """Return the modules of a new process at the end of a command."""
    script = (
        "import atexit, sys; from headgate.cli.main import main; "
        f"sys.argv = ['headgate', *{words!r}]; "
        "atexit.register(lambda: print('LOADED', *sorted(sys.modules))); main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=directory,
        env={"PYTHONPATH": str(PACKAGE.parent), "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stdout.partition("LOADED")[2].split())


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A store with a table of one row, created in this process."""
    made = new_store_cli(tmp_path, monkeypatch, capsys)
    made.file("schema.toml", _SCHEMA)
    made.ok("schema", "apply", "schema.toml", "-b", "master")
    made.ok("mutate", "-b", "master", "insert into g.p values ('a', 1)")
    return made


def test_commands_on_an_embedded_store_load_no_client_and_no_arrow(cli: Cli) -> None:
    loaded = _loaded_by(cli.directory, "dataset", "list")
    heavy = {"headgate.client.store", "headgate.server", "urllib3"}
    heavy |= {"pyarrow", "pandas", "numpy", "pyspark", "pyiceberg", "duckdb", "sqlglot"}
    assert "sqlalchemy" in loaded
    assert loaded & heavy == set()


def test_commands_on_rows_load_no_pandas_though_arrow_would(cli: Cli) -> None:
    loaded = _loaded_by(cli.directory, "mutate", "-b", "master", "update g.p set n = n + 1")
    assert {"pyarrow", "duckdb", "numpy"} <= loaded
    assert loaded & {"pandas", "pyspark", "headgate.client.store", "headgate.server"} == set()


@pytest.mark.parametrize(
    "words", [["build"], ["load", "--engine", "spark"], ["load", "--engine=spark"], []]
)
def test_block_pandas_leaves_it_to_commands_that_may_need_it(words: list[str]) -> None:
    before = list(sys.meta_path)
    block_pandas(words)
    assert sys.meta_path == before


def test_pandas_is_found_again_once_spark_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    block_pandas(["sql", "select 1"])
    blocker: Any = sys.meta_path[0]
    with pytest.raises(ModuleNotFoundError):
        blocker.find_spec("pandas")
    blocker.find_spec("pyspark")
    assert blocker not in sys.meta_path


def test_a_query_without_a_jvm_loads_neither_spark_nor_pandas(cli: Cli) -> None:
    loaded = _loaded_by(cli.directory, "sql", "-b", "master", "select count(*) from g.p")
    assert {"pyarrow", "duckdb", "sqlglot"} <= loaded
    assert loaded & {"pandas", "pyspark", "headgate.client.store", "headgate.server"} == set()


def test_a_list_loads_no_builds_no_tables_of_rich_and_no_other_database(cli: Cli) -> None:
    loaded = _loaded_by(cli.directory, "branch", "list", "--json")
    heavy = {"rich.table", "rich.progress", "sqlalchemy.dialects.postgresql", "headgate.lakefs"}
    heavy |= {"headgate.builds.plan", "headgate.builds.project", "headgate.upkeep.cleanup"}
    assert loaded & heavy == set()
