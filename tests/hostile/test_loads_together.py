"""Many processes of `headgate load` at once: none aborts another's load, or ends by a signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.rows import apply_text
from tests.support.source import ROOT
from tests.support.stores import new_settings
from tests.support.tables import read_table

pytestmark = pytest.mark.timeout(900)

# Of each store. Together 40 processes, each of which needs about a second of one core.
_LOADS = 20
_LOAD = (sys.executable, "-m", "headgate", "load", "-b", "master", "--timeout", "600", "--json")


def _start(settings: Settings, file: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_LOAD, f"s.rows={file}"],
        cwd=settings.root,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "HEADGATE_STORE_CATALOG": settings.catalog,
            "HEADGATE_STORE_WAREHOUSE": settings.warehouse,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_forty_processes_of_load_on_two_stores_all_succeed_and_lose_no_row(
    made_sqlite_url: str, made_postgres_url: str, tmp_path: Path
) -> None:
    stores = {}
    for name, url in (("sqlite", made_sqlite_url), ("postgresql", made_postgres_url)):
        directory = tmp_path / name
        directory.mkdir()
        settings = stores[name] = new_settings(url, directory)
        with Store(settings) as store:
            apply_text(store, '[dataset."s.rows"]\ncolumns = {id = "string"}\nkey = ["id"]\n')
        for number in range(_LOADS):
            (directory / f"{number}.csv").write_text(f"id\n{number}-a\n{number}-b\n")
    processes = [
        _start(settings, f"{number}.csv")
        for number in range(_LOADS)
        for settings in stores.values()
    ]
    ended = [(process.communicate(), process.returncode) for process in processes]
    assert [one for one in ended if one[1] != 0] == []
    expected = sorted(f"{number}-{row}" for number in range(_LOADS) for row in "ab")
    for name, settings in stores.items():
        with Store(settings) as store:
            rows = read_table(store, "master", "s.rows")
            assert sorted(str(row["id"]) for row in rows) == expected, name


def test_processes_that_load_refused_files_all_end_with_the_exit_code_of_bad_input(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    """Threads of a reader that still run at the exit would abort the process."""
    settings = new_settings(made_sqlite_url, tmp_path)
    with Store(settings) as store:
        columns = 'columns = {id = "string", age = "int"}\nkey = ["id"]\n'
        apply_text(store, f'[dataset."s.rows"]\n{columns}')
    many = "".join(f"{number},1\n" for number in range(50_000))
    pq.write_table(pa.table({"id": ["a"], "age": ["x"]}), tmp_path / "text.parquet")
    whole = (tmp_path / "text.parquet").read_bytes()
    refused = {
        "number.csv": f"id,age\n{many}z,old\n".encode(),
        "column.csv": b"id,size\na,1\n",
        "ragged.csv": f"id,age\n{many}z,1,2\n".encode(),
        "type.jsonl": b'{"id": "a", "age": {"b": 1}}\n',
        "cut.jsonl": b'{"id": "a"}\n{"id": ',
        "cut.parquet": whole[: len(whole) // 2],
        "text.parquet": whole,
        "noise.parquet": bytes(range(256)) * 40,
    }
    for name, content in refused.items():
        (tmp_path / name).write_bytes(content)
    processes = [(name, _start(settings, name)) for name in [*refused] * 4]
    ended = [(name, process.communicate(), process.returncode) for name, process in processes]
    assert [one for one in ended if one[2] != 2] == []
    assert all("code" in json.loads(out) and not err for _, (out, err), _ in ended)
    with Store(settings) as store:
        assert read_table(store, "master", "s.rows") == []
