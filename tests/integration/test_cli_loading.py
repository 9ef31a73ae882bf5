"""Modules that a command imports: each unnecessary one delays every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
