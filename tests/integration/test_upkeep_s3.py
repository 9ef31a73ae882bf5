"""Cleanup and doctor of a warehouse in an S3-compatible store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.upkeep.cleanup import read_clocks
from headgate.upkeep.doctor import examine
from tests.support.s3 import running_s3
from tests.support.stores import content, files_branch, new_settings, put
from tests.support.upkeep import stored_keys, tidy, tidy_later


def test_upkeep_on_s3_sweeps_what_is_forgotten_and_finds_what_is_lost(
    sqlite_url: str, tmp_path: Path
) -> None:
    with running_s3(tmp_path) as server:
        warehouse = f"s3://{server.create_bucket()}/warehouse"
        settings = new_settings(sqlite_url, tmp_path)
        settings = replace(settings, warehouse=warehouse, environ=server.options)
        with Store(settings) as store:
            branch = files_branch(store)
            put(branch, a="old")
            put(branch, a="new")
            clocks = read_clocks(store.database, store.objects)
            assert abs(clocks.database - clocks.store) < 60_000_000
            assert tidy(store).items == []
            assert tidy_later(store, 40).condemned == 4
            assert tidy_later(store, 42).deleted == 3
            assert content(branch) == {"a": "new"}
            # The cleanups ran by clocks that were ahead.
            assert _bad(settings, deep=True) == ["clock"]
            store.objects.delete([sorted(stored_keys(store))[0]])
            assert _bad(settings) == ["clock", "objects"]


def _bad(settings: Settings, *, deep: bool = False) -> list[str]:
    return [check.name for check in examine(settings, deep=deep).checks if not check.ok]
