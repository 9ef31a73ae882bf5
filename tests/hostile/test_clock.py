"""A clock that jumps: what it may record, and what nobody loses by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, select, text

from headgate.catalog import database as catalog
from headgate.catalog import retention, tickets
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.recovery import correct_times
from headgate.catalog.schema import publications, tokens
from headgate.catalog.schema import store as facts
from headgate.catalog.units import open_unit
from headgate.errors import ClockImplausible, OpenTransactionAlreadyExists, TransactionNotOpen
from headgate.model.ids import Instant
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.tables.updates import apply_updates
from headgate.upkeep.cleanup import Clocks, clean_up
from headgate.upkeep.doctor import check_rows, examine
from tests.support.cli import Cli, new_store_cli
from tests.support.cli import put as put_file
from tests.support.clocks import DAY_US, SetClock
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, files_branch, load, new_store, put
from tests.support.table_upkeep import TableClient
from tests.support.upkeep import policy, stored_keys, tidy


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_catalog_url, tmp_path) as store:
        yield store


@pytest.fixture
def branch(store: Store) -> BranchHandle:
    branch = files_branch(store)
    put(branch, a="1")
    put(branch, a="2")
    return branch


def _now(store: Store) -> Instant:
    return store.database.read(catalog.now)


def _newest(store: Store) -> Instant:
    return store.database.read(retention.last_publication_at)


def _clock_findings(store: Store) -> str:
    checks = store.database.read(lambda c: check_rows(c, deep=True))
    assert {c.name for c in checks if not c.ok} <= {"clock"}, checks
    return "\n".join(f.what for c in checks for f in c.findings)


# --- publications --------------------------------------------------------------------------------


def test_publications_after_a_jump_are_reported_and_corrected(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(400)
    put(branch, a="3")
    child = branch.dataset.branch("child").create(parent="master")
    set_clock(0)
    # The order of the log outlives a wrong clock, so these are in the future too.
    put(branch, a="4")
    put(child, b="5")
    opened = child.transaction()
    assert _newest(store) > _now(store) + 399 * DAY_US
    found = _clock_findings(store)
    assert "publications 4 to 7 are in the future" in found and "OPEN or ABORTED" in found
    [check] = [c for c in examine(store.settings).checks if c.name == "clock"]
    assert all("--clock-was-ahead" in finding.remedy for finding in check.findings)
    assert correct_times(store.database, actor="ana") == 4
    assert _clock_findings(store) == ""
    assert_store_sound(store)
    opened.write("c", b"6")
    opened.commit()
    put(branch, a="7")
    assert abs(_newest(store) - _now(store)) < DAY_US
    assert content(branch)["a"] == "7" and content(child)["c"] == "6"
    assert_store_sound(store)
    events = store.database.read(lambda c: _events(c))
    assert events == ["clock_corrected"]


def _events(connection: Connection) -> list[str]:
    query = text("SELECT kind FROM events WHERE kind LIKE 'clock%'")
    return list(connection.execute(query).scalars())


def test_correction_of_a_store_whose_clock_was_right_changes_no_time(
    store: Store, branch: BranchHandle
) -> None:
    times = select(publications.c.at).order_by(publications.c.number)
    before = store.database.read(lambda c: c.execute(times).scalars().all())
    assert correct_times(store.database, actor="ana") == 0
    assert store.database.read(lambda c: c.execute(times).scalars().all()) == before
    assert_store_sound(store)


def test_token_that_was_made_by_a_clock_ahead_expires_when_it_should(
    store: Store, set_clock: SetClock
) -> None:
    set_clock(400)
    store.create_token(actor="bo", role="reader", lifetime_seconds=86_400)
    set_clock(0)
    correct_times(store.database, actor="ana")
    expires = store.database.read(lambda c: c.execute(select(tokens.c.expires_at)).scalar_one())
    assert 0 < expires - _now(store) <= DAY_US


# --- leases --------------------------------------------------------------------------------------


def test_lease_of_a_clock_ahead_does_not_keep_a_second_writer_out(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(400)
    first = branch.transaction()
    set_clock(0)
    assert "1 transactions have leases until" in _clock_findings(store)
    second = branch.transaction()
    with pytest.raises(TransactionNotOpen):
        first.commit()
    second.write("b", b"2")
    second.commit()
    put(branch, c="3")
    assert content(branch) == {"a": "2", "b": "2", "c": "3"}


def test_publication_without_a_transaction_takes_over_from_such_a_lease(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(400)
    branch.transaction()
    set_clock(0)
    put(branch, a="3")
    assert content(branch) == {"a": "3"}


def test_lease_outlives_a_clock_that_is_set_back_a_little(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(0.02)
    first = branch.transaction()
    set_clock(0)
    with pytest.raises(OpenTransactionAlreadyExists):
        branch.transaction()
    first.commit()


def test_recovery_gives_leases_of_a_clock_ahead_the_length_that_they_were_granted(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(400)
    held = branch.transaction()
    unit = open_unit(store.database, "master", actor="ana", lease_seconds=60)
    dispatch_attempt(store.database, "key", actor="ana", lease_seconds=60)
    set_clock(0)
    store.recover()
    # Its owner may be alive, so it is shortened and not aborted.
    lease = load(store, held.id)
    assert lease.state == "OPEN" and lease.lease_until is not None
    assert lease.lease_until <= _now(store) + (lease.lease_seconds or 0) * 1_000_000
    until = text("SELECT lease_until FROM units WHERE id = :id")
    query = lambda c: c.execute(until, {"id": unit.id}).scalar_one()  # noqa: E731
    assert store.database.read(query) <= _now(store) + 60 * 1_000_000
    held.commit()


def test_attempt_whose_lease_is_of_a_clock_ahead_holds_cleanup_back_no_longer(
    store: Store, set_clock: SetClock
) -> None:
    dispatch_attempt(store.database, "key", actor="ana", lease_seconds=60)
    started = store.database.read(lambda c: retention.oldest_owner(c, _now(store)))
    assert started is not None
    set_clock(400)
    dispatch_attempt(store.database, "key", actor="ana", lease_seconds=60)
    set_clock(0)
    assert store.database.read(lambda c: retention.oldest_owner(c, _now(store))) is None


def test_ticket_of_a_clock_ahead_holds_no_place_in_the_queue(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    id = branch.load().id
    set_clock(400)
    tickets.Line(store.database, seconds=5).join([id])
    set_clock(0)
    mine = tickets.Line(store.database, seconds=5)
    mine.join([id])
    assert mine.wait()


# --- cleanup -------------------------------------------------------------------------------------


@pytest.mark.parametrize("publishes", [False, True])
def test_cleanup_by_a_clock_ahead_is_refused_and_condemns_nothing(
    store: Store, branch: BranchHandle, set_clock: SetClock, publishes: bool
) -> None:
    old = branch.load().view
    put(branch, a="3")
    before = stored_keys(store)
    set_clock(400)
    if publishes:
        # A new record, by the same wrong clock, does not hide the time without one.
        put(branch, b="4")
    for dry_run in (True, False):
        with pytest.raises(ClockImplausible, match="nothing was recorded between"):
            tidy(store, dry_run=dry_run)
    set_clock(0)
    assert before <= stored_keys(store)
    assert content(branch, at=old) == {"a": "2"}
    assert store.database.read(retention.remembered_since) == 0


def test_cleanup_goes_on_when_a_person_confirms_the_clock_and_from_then_on(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    set_clock(60)
    with pytest.raises(ClockImplausible):
        tidy(store)
    cleaned = clean_up(store.database, store.objects, policy(), actor="ana", confirm_clock=True)
    assert cleaned.condemned > 0
    set_clock(67)
    tidy(store)


def test_store_that_is_cleaned_every_week_may_be_idle_for_a_year(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    for week in range(1, 53, 4):
        for day in (0, 7, 14, 21):
            set_clock(week * 7 + day)
            tidy(store)
    assert content(branch) == {"a": "2"}


def test_old_store_without_a_recorded_cleanup_is_judged_by_its_log(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    for day in (10, 20, 30, 40):
        set_clock(day)
        put(branch, a=str(day))
    set_clock(45)
    tidy(store)
    cleaned = facts.c.key == "cleaned_at"
    store.database.write(lambda c: c.execute(delete(facts).where(cleaned)))
    tidy(store)
    store.database.write(lambda c: c.execute(delete(facts).where(cleaned)))
    set_clock(70)
    with pytest.raises(ClockImplausible):
        tidy(store)


def test_new_store_is_cleaned(store: Store) -> None:
    assert tidy(store).items == []


def test_cleanup_by_a_clock_behind_the_log_is_refused(
    store: Store, branch: BranchHandle, set_clock: SetClock
) -> None:
    """Marks of that clock would be old at once when it is corrected, and be swept too early."""
    set_clock(-30)
    with pytest.raises(ClockImplausible, match="the newest publication is from"):
        tidy(store)
    set_clock(0)
    tidy(store)


@pytest.mark.parametrize("wrong", ["database", "store", "here"])
def test_cleanup_and_doctor_with_clocks_that_disagree_say_which(
    store: Store, branch: BranchHandle, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    moment = _now(store)
    right = Clocks(database=moment, store=moment, here=moment)
    clocks = replace(right, **{wrong: Instant(moment + 2 * 3600 * 1_000_000)})
    with pytest.raises(ClockImplausible, match="the clock of"):
        clean_up(store.database, store.objects, policy(), actor="ana", clocks=clocks)
    monkeypatch.setattr("headgate.upkeep.doctor.read_clocks", lambda *_: clocks)
    [storage] = [c for c in examine(store.settings).checks if c.name == "storage"]
    assert "the clock of" in storage.findings[0].what
    clean_up(store.database, store.objects, policy(), actor="ana", clocks=right)


def test_time_before_which_snapshots_are_forgotten_is_corrected(
    store: Store, set_clock: SetClock
) -> None:
    with TableClient(store) as client:
        client.create(1)
    set_clock(400)
    clean_up(store.database, store.objects, policy(), actor="ana", confirm_clock=True)
    set_clock(0)
    assert "has forgotten the snapshots" in _clock_findings(store)
    correct_times(store.database, actor="ana")
    assert _clock_findings(store) == ""
    # What the wrong cleanup condemned is needed again, and is still there.
    clean_up(store.database, store.objects, policy(), actor="ana", confirm_clock=True)
    store.__dict__.pop("tables", None)
    with TableClient(store) as client:
        client.overwrite(2)
        assert len(client.table().metadata.snapshots) >= 2


def test_table_written_by_a_clock_ahead_has_a_log_that_engines_accept(store: Store) -> None:
    """Iceberg's Java library rejects a snapshot log whose times fall by more than a minute."""
    with TableClient(store) as client:
        client.create(1)
        metadata = dict(store.tables.read(client.table().metadata_location).metadata)
    last = metadata["snapshot-log"][-1]["timestamp-ms"]
    snapshot = {**metadata["snapshots"][-1], "snapshot-id": 7, "sequence-number": 9}
    snapshot |= {"timestamp-ms": last - 400 * 86_400_000, "parent-snapshot-id": None}
    updated = apply_updates(
        metadata,
        [
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": 7,
            },
        ],
        now_ms=last - 400 * 86_400_000,
        base_location=None,
    )
    times = [entry["timestamp-ms"] for entry in updated["snapshot-log"]]
    assert times == sorted(times) and updated["last-updated-ms"] >= times[-1]


# --- the command line ----------------------------------------------------------------------------


def test_recover_and_cleanup_on_the_command_line_say_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    set_clock: SetClock,
) -> None:
    cli: Cli = new_store_cli(tmp_path, monkeypatch, capsys)
    put_file(cli, "a", "1")
    set_clock(400)
    put_file(cli, "a", "2")
    assert cli.error("cleanup", code=4) == "clock_implausible"
    set_clock(0)
    assert cli.json("doctor", code=1)["ok"] is False
    # The sentence has the time, so that it is another one each time.
    assert cli.json("cleanup", code=4)["code"] == "clock_implausible"
    cli.json("recover", "--clock-was-ahead", "--dry-run")
    assert cli.json("doctor", code=1)["ok"] is False
    assert "corrected the times of 1 publication" in cli.ok("recover", "--clock-was-ahead").err
    assert cli.json("doctor", "--deep")["ok"] is True
    cli.ok("cleanup")
    set_clock(60)
    cli.ok("cleanup", "--confirm-clock")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    assert cli.error("recover", "--clock-was-ahead", code=2) == "invalid"
