"""Twelve processes publish to one branch: no write is lost or doubled, the history is linear."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import ViewConflict
from headgate.files.edits import root_of
from headgate.model.nouns import TransactionType
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.processes import finish, start
from tests.support.stores import DATASET, content, files_branch, new_settings, publish_files

_PUBLISHERS = 12


def _publish_all(settings: Settings, name: str, rounds: int, flags: Path) -> None:
    with Store(settings, recover_first=False) as store:
        master = store.dataset(DATASET).branch("master")
        (flags / f"{name}.ready").touch()
        while len(list(flags.glob("*.ready"))) < _PUBLISHERS:
            time.sleep(0.01)
        refused = 0
        for number in range(rounds):
            while True:
                try:
                    publish_files(master, **{f"{name}-{number}": f"{name} {number}"})
                    break
                except ViewConflict:
                    refused += 1
        (flags / f"{name}.refused").write_text(str(refused))


def test_twelve_publishers_on_one_branch_lose_and_double_nothing(
    catalog_url: str,
    tmp_path: Path,
    rounds: int,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    settings, flags = new_settings(catalog_url, tmp_path), tmp_path / "flags"
    flags.mkdir()
    each = min(max(rounds // 2, 5), 50)
    with Store(settings) as store:
        master = files_branch(store)
        started = time.monotonic()
        crowd = [start(_publish_all, settings, f"p{n}", each, flags) for n in range(_PUBLISHERS)]
        assert [finish(process) for process in crowd] == [0] * _PUBLISHERS
        seconds = time.monotonic() - started
        wanted = {f"p{n}-{i}": f"p{n} {i}" for n in range(_PUBLISHERS) for i in range(each)}
        assert content(master) == wanted
        history = master.history()
        assert len(history) == len(wanted)
        assert {t.type for t in history} == {TransactionType.APPEND}
        sizes = [store.trees.measure(root_of(t.version)).entries for t in history]
        assert sizes == list(range(len(history), 0, -1))
        assert_store_sound(store)
    refused = sum(int(f.read_text()) for f in flags.glob("*.refused"))
    record_property("publications_per_second", round(len(wanted) / seconds, 1))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{settings.catalog.partition(':')[0]}: {len(wanted)} publications by {_PUBLISHERS} "
            f"processes on one branch in {seconds:.1f} s, {len(wanted) / seconds:.0f} per second; "
            f"{refused} refusals reached a caller\n"
        )
