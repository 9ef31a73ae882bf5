"""Many processes of `headgate load` append to one table at once: none aborts another's load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.store.embedded import Store
from tests.support.rows import apply_text
from tests.support.source import ROOT
from tests.support.stores import new_settings
from tests.support.tables import read_table

pytestmark = pytest.mark.timeout(900)

# Of each store. Together 40 processes, each of which needs about a second of one core.
_LOADS = 20
_LOAD = (sys.executable, "-m", "headgate", "load", "-b", "master", "--timeout", "600", "--json")


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
        subprocess.Popen(
            [*_LOAD, f"s.rows={number}.csv"],
            cwd=settings.root,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "HEADGATE_STORE_CATALOG": settings.catalog,
                "HEADGATE_STORE_WAREHOUSE": settings.warehouse,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(_LOADS)
        for settings in stores.values()
    ]
    ended = [(process.communicate()[1], process.returncode) for process in processes]
    assert [one for one in ended if one[1] != 0] == []
    expected = sorted(f"{number}-{row}" for number in range(_LOADS) for row in "ab")
    for name, settings in stores.items():
        with Store(settings) as store:
            rows = read_table(store, "master", "s.rows")
            assert sorted(str(row["id"]) for row in rows) == expected, name
