"""F04 for tables: one of fifty processes opens; it is killed, writes rows, or was only slow."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from headgate.errors import OpenTransactionAlreadyExists
from headgate.model.nouns import TransactionState
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.crowds import outcomes, say
from tests.support.oracle import assert_rows_sound
from tests.support.processes import finish, running, start
from tests.support.stores import expire_just_now, load, new_settings

# Fifty processes load this module; only the winner needs Arrow, which is imported where used.
_OPENERS = 50
_TABLE = "shop.orders"


def _open_and_append(settings: Settings, name: str, flags: Path, crowd: int) -> None:
    """Wait for all processes, open, append a row, and hold until killed or signaled to commit."""
    with Store(settings, recover_first=False) as store:
        master = store.dataset(_TABLE).branch("master")
        (flags / f"{name}.ready").touch()
        while len(list(flags.glob("*.ready"))) < crowd:
            time.sleep(0.02)
        try:
            opened = master.transaction("APPEND", lease_seconds=60)
        except OpenTransactionAlreadyExists as refused:
            say(flags / f"{name}.refused", refused.facts["transaction"])
            return
        _append(store, f"txn:{opened.id}")
        say(flags / f"{name}.won", opened.id)
        while not (flags / "commit").exists():
            time.sleep(0.02)
        opened.commit()


def _append(store: Store, context: str) -> None:
    """Append one row, which is visible in that context at once."""
    import pyarrow as pa

    from tests.support.tables import iceberg_client

    with iceberg_client(store, context) as client:
        client.load_table(_TABLE).append(pa.table({"id": pa.array([2], pa.int64())}))
        assert client.load_table(_TABLE).scan().to_arrow().num_rows == 2


def _ids(store: Store, context: str = "master") -> list[int]:
    from tests.support.tables import read_table

    return sorted(row["id"] for row in read_table(store, context, _TABLE))


def _new_table(catalog_url: str, root: Path) -> tuple[Settings, Path]:
    settings, flags = new_settings(catalog_url, root), root / "flags"
    flags.mkdir()
    from tests.support.tables import create_tables

    with Store(settings) as store:
        create_tables(store, "master", orders=[{"id": 1}])
    return settings, flags


def test_f04_rows_of_a_killed_winner_are_never_seen(catalog_url: str, tmp_path: Path) -> None:
    settings, flags = _new_table(catalog_url, tmp_path)
    crowd = [start(_open_and_append, settings, str(n), flags, _OPENERS) for n in range(_OPENERS)]
    assert outcomes(flags, _OPENERS) == {".won": 1, ".refused": _OPENERS - 1}
    [won] = flags.glob("*.won")
    held = won.read_text()
    assert {f.read_text() for f in flags.glob("*.refused")} == {held}
    crowd[int(won.stem)].kill()
    for process in crowd:
        process.join(60)
    assert crowd[int(won.stem)].exitcode == -signal.SIGKILL
    with Store(settings) as store:
        expire_just_now(store, held)
        following = store.dataset(_TABLE).branch("master").transaction("APPEND")
        assert load(store, held).state is TransactionState.ABORTED
        assert _ids(store, f"txn:{following.id}") == [1]
        following.abort()
        assert _ids(store) == [1]
        assert_rows_sound(store)


def test_f04_winner_on_a_table_that_was_only_slow_commits(catalog_url: str, tmp_path: Path) -> None:
    settings, flags = _new_table(catalog_url, tmp_path)
    with running(_open_and_append, settings, "slow", flags, 1) as slow:
        assert outcomes(flags, 1) == {".won": 1}
        with Store(settings) as store:
            expire_just_now(store, (flags / "slow.won").read_text())
            store.recover()
            (flags / "commit").touch()
            assert finish(slow) == 0
            assert _ids(store) == [1, 2]
            assert_rows_sound(store)
