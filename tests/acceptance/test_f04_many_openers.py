"""F04: fifty processes open on one branch; the winner is killed, or was only slow."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from headgate.errors import OpenTransactionAlreadyExists
from headgate.model.nouns import Transaction, TransactionState
from headgate.settings import Settings
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.crowds import outcomes, say
from tests.support.oracle import assert_store_sound
from tests.support.processes import finish, running, start
from tests.support.stores import (
    DATASET,
    content,
    expire_just_now,
    files_branch,
    load,
    new_settings,
    put,
    set_lease,
)

_OPENERS = 50
# Long enough for an opener to be rejected, short enough for the test to wait for its end.
_LAST_SECONDS = 3


def _open_and_hold(settings: Settings, name: str, flags: Path, crowd: int) -> None:
    """Wait for all processes, open, write, and hold until killed or signaled to commit."""
    with Store(settings, recover_first=False) as store:
        master = store.dataset(DATASET).branch("master")
        (flags / f"{name}.ready").touch()
        while len(list(flags.glob("*.ready"))) < crowd:
            time.sleep(0.02)
        try:
            opened = master.transaction(lease_seconds=60)
        except OpenTransactionAlreadyExists as refused:
            say(flags / f"{name}.refused", refused.facts["transaction"])
            return
        opened.write("from-the-winner", b"x")
        say(flags / f"{name}.won", opened.id)
        while not (flags / "commit").exists():
            time.sleep(0.02)
        opened.commit()


def test_f04_one_of_fifty_openers_wins_and_is_taken_over_when_killed(
    catalog_url: str, tmp_path: Path
) -> None:
    settings, flags = new_settings(catalog_url, tmp_path), tmp_path / "flags"
    flags.mkdir()
    with Store(settings) as store:
        master = files_branch(store)
        view = put(master, a="1")
        crowd = [start(_open_and_hold, settings, str(n), flags, _OPENERS) for n in range(_OPENERS)]
        assert outcomes(flags, _OPENERS) == {".won": 1, ".refused": _OPENERS - 1}
        [won] = flags.glob("*.won")
        held = won.read_text()
        assert {f.read_text() for f in flags.glob("*.refused")} == {held}
        crowd[int(won.stem)].kill()
        for process in crowd:
            process.join(60)
        assert crowd[int(won.stem)].exitcode == -signal.SIGKILL
        set_lease(store, held, seconds_left=_LAST_SECONDS)
        following = _open_when_the_lease_is_over(master)
        assert load(store, held).state is TransactionState.ABORTED
        assert (following.parent, content(master)) == (view, {"a": "1"})
        assert_store_sound(store)


def _open_when_the_lease_is_over(branch: BranchHandle) -> Transaction:
    """Retry until the lease expires, as a user would."""
    refusals = 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            opened = branch.transaction().transaction
            assert refusals > 0, "a lease that had not expired was ignored"
            return opened
        except OpenTransactionAlreadyExists as refused:
            assert 0 <= refused.facts["lease_left_seconds"] <= _LAST_SECONDS
            refusals += 1
            time.sleep(0.05)
    raise AssertionError("nobody could take over")


def test_f04_winner_that_was_only_slow_commits(catalog_url: str, tmp_path: Path) -> None:
    settings, flags = new_settings(catalog_url, tmp_path), tmp_path / "flags"
    flags.mkdir()
    with Store(settings) as store:
        master = files_branch(store)
        with running(_open_and_hold, settings, "slow", flags, 1) as slow:
            assert outcomes(flags, 1) == {".won": 1}
            expire_just_now(store, (flags / "slow.won").read_text())
            store.recover()
            (flags / "commit").touch()
            assert finish(slow) == 0
        assert content(master) == {"from-the-winner": "x"}
        assert_store_sound(store)
