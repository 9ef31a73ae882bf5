"""Cleanup: condemns what nothing needs in the catalog, and sweeps its bytes a day later.

Cleanup runs beside writers. Each step is a short catalog transaction, and where a writer was first,
cleanup spares the object. If it is killed, the next cleanup continues from the marks.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from headgate.catalog import garbage_collection, retention, warehouse
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.garbage_collection import ObjectMark, VersionMark
from headgate.catalog.operations import forget_old_operations
from headgate.catalog.records import SKEW_US
from headgate.catalog.retention import Retained
from headgate.catalog.transactions import record_event
from headgate.errors import CatalogUnavailable, ClockImplausible, Invalid
from headgate.files.tree_store import FileTrees
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, VersionId, instant_text
from headgate.model.nouns import DatasetKind
from headgate.model.object_store import ObjectInfo, ObjectStore
from headgate.upkeep import reachability
from headgate.upkeep.reachability import Cutoffs, Disposition, Kind, Readers

DAY_SECONDS = 24 * 3600
# Objects deleted at once, while other sweeps and writers that take objects back wait.
_SWEEP_BATCH = 100
_SWEEP_LOCK_SECONDS = 5.0
# Upper bound of a catalog transaction, from reading the clock to its commit.
_LONGEST_UNIT_SECONDS = 600
_EXAMPLES = 20
_BACKUP_RUNS = "a backup is running; deleted by the next cleanup"


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """Minimum ages of each step."""

    # How long a version is kept after no branch shows it.
    retain_seconds: int
    # Grace period: younger objects and versions are never condemned.
    older_than_seconds: int = 7 * DAY_SECONDS
    # From condemning to sweeping.
    sweep_after_seconds: int = DAY_SECONDS
    # How long the catalog remembers swept objects: longer than any writer may pause.
    forget_after_seconds: int = 30 * DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Current time by three clocks: the database's for leases and marks, the store's for objects.

    The third only confirms them.
    """

    database: Instant
    store: Instant
    # This machine's.
    here: Instant


def check_older_than(seconds: int) -> int:
    """Raise if a grace period is too short for writers to publish what they have uploaded."""
    if seconds < DAY_SECONDS:
        raise Invalid(
            f"--older-than {seconds} s is too short: objects younger than 24 h may belong to a "
            "writer that has not published yet. Set 24h or more.",
            older_than_seconds=seconds,
        )
    return seconds


def read_clocks(database: Database, objects: ObjectStore) -> Clocks:
    """Return both times; the store's is the time of an object written for it."""
    stored = reachability.probe(objects).modified_at
    return Clocks(database=database.read(now), store=stored, here=_read_own_clock())


def read_database_clock(database: Database) -> Clocks:
    """Return the database's time for both clocks, without writing an object."""
    moment = database.read(now)
    return Clocks(database=moment, store=moment, here=_read_own_clock())


def _read_own_clock() -> Instant:
    return Instant(time.time_ns() // 1000)


def find_difference(clocks: Clocks) -> str | None:
    """Return how far the clocks are apart, if that is more than clocks differ."""
    times = {
        "the catalog's database": clocks.database,
        "the warehouse": clocks.store,
        "this machine": clocks.here,
    }
    early, late = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    if times[late] - times[early] <= SKEW_US:
        return None
    return (
        f"the clock of {late} is at {instant_text(times[late])}, and the clock of {early} at "
        f"{instant_text(times[early])}"
    )


# A store in use has records every day, and an idle one has its cleanups.
_LONGEST_GAP_US = 14 * DAY_SECONDS * 1_000_000


def _check_clock(database: Database, clocks: Clocks, policy: RetentionPolicy) -> None:
    """Raise if a jump of the clock may make history look older than it is."""
    moment = clocks.database
    reason = find_difference(clocks)
    if reason is None:
        newest = database.read(retention.last_publication_at)
        if newest > moment + SKEW_US:
            reason = (
                f"the newest publication is from {instant_text(newest)}, and it is "
                f"{instant_text(moment)}. `headgate doctor` names the remedy"
            )
    if reason is None:
        horizon = Instant(max(0, moment - policy.retain_seconds * 1_000_000))
        gap = database.read(lambda c: retention.longest_gap(c, moment, horizon))
        if gap is not None and gap[1] - gap[0] > _LONGEST_GAP_US:
            begin, end = map(instant_text, gap)
            reason = f"nothing was recorded between {begin} and {end}"
    if reason is not None:
        raise ClockImplausible(reason=reason)


class Step(enum.StrEnum):
    CONDEMN = "condemn"
    SWEEP = "sweep"
    # Condemned earlier, and needed again.
    SPARE = "spare"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One object or version that was condemned, swept or spared."""

    step: Step
    what: str
    where: str
    why: str
    bytes: int = 0


@dataclass(kw_only=True)
class Kept:
    """Number and size of what is kept for one reason, with examples."""

    what: str
    why: str
    count: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class CleanupReport:
    """Result of a cleanup or, of a dry run, what a cleanup would do."""

    dry_run: bool
    items: list[Item] = field(default_factory=list)
    _kept: dict[tuple[str, str], Kept] = field(default_factory=dict)

    @property
    def condemned(self) -> int:
        return self._count(Step.CONDEMN)

    @property
    def deleted(self) -> int:
        return self._count(Step.SWEEP)

    @property
    def spared(self) -> int:
        return self._count(Step.SPARE)

    @property
    def bytes(self) -> int:
        """Return the size of the deleted objects."""
        return sum(item.bytes for item in self.items if item.step is Step.SWEEP)

    @property
    def kept(self) -> list[Kept]:
        return [kept for _, kept in sorted(self._kept.items())]

    def add(self, step: Step, what: str, where: str, why: str, *, bytes: int = 0) -> None:
        self.items.append(Item(step=step, what=what, where=where, why=why, bytes=bytes))

    def keep(
        self, what: str, why: str, *, count: int = 1, bytes: int = 0, example: str | None = None
    ) -> None:
        kept = self._kept.setdefault((what, why), Kept(what=what, why=why))
        kept.count += count
        kept.bytes += bytes
        if example is not None and len(kept.examples) < _EXAMPLES:
            kept.examples.append(example)

    def to_json(self) -> dict[str, Any]:
        return {
            "condemned": self.condemned,
            "deleted": self.deleted,
            "bytes": self.bytes,
            "kept": [asdict(kept) for kept in self.kept],
            "dry_run": self.dry_run,
            "spared": self.spared,
            "items": [asdict(item) for item in self.items],
        }

    def _count(self, step: Step) -> int:
        return sum(item.step is step for item in self.items)


def clean_up(
    database: Database,
    objects: ObjectStore,
    policy: RetentionPolicy,
    *,
    actor: str,
    dry_run: bool = False,
    clocks: Clocks | None = None,
    confirm_clock: bool = False,
) -> CleanupReport:
    """Condemn what nothing needs and sweep what was condemned; a dry run only reports.

    Raise `CleanupHeld` if another catalog may need what this one does not, and `ClockImplausible`
    if the clock may be wrong, unless `confirm_clock` is set.
    """
    if clocks is None:
        clocks = read_database_clock(database) if dry_run else read_clocks(database, objects)
    if not confirm_clock:
        _check_clock(database, clocks, policy)
    if dry_run:
        warehouse.check_may_clean(database, objects)
    else:
        warehouse.advance(database, objects)
        database.write(lambda connection: retention.record_cleanup(connection, clocks.database))
    work = _Cleanup(database, objects, policy, clocks, CleanupReport(dry_run=dry_run))
    work.clean()
    if not dry_run:
        database.write(forget_old_operations)
        work.record(actor)
    return work.report


@dataclass
class _Cleanup:
    """The steps of one cleanup, in their order."""

    database: Database
    objects: ObjectStore
    policy: RetentionPolicy
    clocks: Clocks
    report: CleanupReport

    def clean(self) -> None:
        retained, versions, age_us = self.database.read(self._mark_versions)
        self.readers = Readers(
            objects=self.objects,
            trees=FileTrees(self.objects),
            tables=reachability.TableFiles(self.objects, since=self._forget(retained.horizon)),
        )
        spared = self._spare_versions(versions.spare)
        condemned = versions.condemn
        if not self.report.dry_run:
            ids, moment = versions.condemn, self.clocks.database
            done = garbage_collection.condemn_versions(self.database, ids, retained, moment)
            condemned = tuple(done)
            if condemned:
                reach(Failpoint.CLEANUP_CONDEMNED)
            garbage_collection.forget_holds(self.database)
        self._report_versions(versions, condemned)
        left_out = condemned if self.report.dry_run else ()
        mark = self.database.read(lambda c: garbage_collection.mark_objects(c, left_out))
        kept = replace(
            mark,
            roots=mark.roots | spared[DatasetKind.FILES],
            tables=mark.tables | spared[DatasetKind.TABLE] | spared[DatasetKind.VIEW],
        )
        found = self._sort(kept, age_us)
        if not self.report.dry_run:
            sweep = _Sweep(self.database, self.readers, self.policy, self.clocks.database)
            sweep.apply(mark, found)
            for reason, count in found.failed.items():
                self.report.keep("object", reason, count=count)
        self._report_objects(Step.SPARE, Disposition.SPARE, found.spare)
        self._report_objects(Step.CONDEMN, Disposition.CONDEMN, found.condemn)
        self._report_objects(Step.SWEEP, Disposition.SWEEP, found.sweep)

    def record(self, actor: str) -> None:
        """Record an event in the catalog, if anything was done."""
        report = self.report
        if report.items:
            self.database.write(
                lambda connection: record_event(
                    connection,
                    at=self.clocks.database,
                    actor=actor,
                    kind="cleanup",
                    condemned=report.condemned,
                    deleted=report.deleted,
                    spared=report.spared,
                    bytes=report.bytes,
                )
            )

    def _forget(self, horizon: Instant) -> Instant:
        """Expire snapshots that were last shown before the horizon; return the effective time."""
        if not self.report.dry_run:
            return retention.forget_before(self.database, horizon)
        return max(horizon, self.database.read(retention.remembered_since))

    # --- versions ---------------------------------------------------------------------------

    def _mark_versions(self, connection: Connection) -> tuple[Retained, VersionMark, int]:
        """Return what is kept, what can be condemned, and the minimum age in microseconds."""
        time = self.clocks.database
        retained = retention.compute_retained(
            connection, retain_seconds=self.policy.retain_seconds, moment=time
        )
        age_us = self.policy.older_than_seconds * 1_000_000
        owner = retention.oldest_owner(connection, time)
        if owner is not None:
            # At least as old as the oldest writer, which may still publish what it found.
            age_us = max(age_us, time - owner)
        older_than = Instant(max(0, time - age_us))
        return retained, garbage_collection.mark_versions(connection, retained, older_than), age_us

    def _spare_versions(self, ids: Collection[VersionId]) -> dict[DatasetKind, set[str]]:
        """Spare versions that are needed again, with their objects, if none of those is swept."""
        roots = self.database.read(lambda c: garbage_collection.locations_of(c, ids))
        spared: dict[DatasetKind, set[str]] = {kind: set() for kind in DatasetKind}
        for id, (kind, root) in roots.items():
            if self.report.dry_run:
                complete = reachability.find_complete(self.readers, kind, root) is not None
            else:
                complete = self._spare_version(id, kind, root)
            if complete:
                spared[kind].add(root)
                self.report.add(Step.SPARE, "version", id, Disposition.SPARE)
            else:
                why = "needed again, but partly deleted"
                self.report.keep("condemned version", why, example=id)
        return spared

    def _spare_version(self, id: VersionId, kind: DatasetKind, root: str) -> bool:
        with garbage_collection.sweep_lock(self.database):
            locations = reachability.find_complete(self.readers, kind, root)
            if locations is None:
                return False
            garbage_collection.spare_objects(self.database, locations)
            garbage_collection.spare_versions(self.database, [id])
        return True

    def _report_versions(self, mark: VersionMark, condemned: Collection[VersionId]) -> None:
        for reason, count in mark.kept.items():
            self.report.keep("version", reason, count=count)
        if mark.too_recent:
            self.report.keep("version", Disposition.YOUNG, count=mark.too_recent)
        described = self.database.read(
            lambda connection: list(garbage_collection.describe_versions(connection, condemned))
        )
        for where, why in described:
            self.report.add(Step.CONDEMN, "version", where, why)

    # --- objects ----------------------------------------------------------------------------

    def _sort(self, mark: ObjectMark, age_us: int) -> _SweepWork:
        needed = reachability.find_needed(self.readers, mark)
        cutoffs = Cutoffs(
            young_since=Instant(self.clocks.store - age_us),
            fresh_since=Instant(self.clocks.database - self.policy.sweep_after_seconds * 1_000_000),
        )
        found = _SweepWork()
        places = {
            Disposition.CONDEMN: found.condemn,
            Disposition.SWEEP: found.sweep,
            Disposition.SPARE: found.spare,
        }
        for info in self.objects.list():
            if info.key.startswith(f"{warehouse.MARKERS}/"):
                continue
            kind, _ = reachability.read_key(info.key)
            location = f"{self.objects.url}/{info.key}"
            condemned_at = mark.condemned.get(location)
            disposition = reachability.decide(
                kind,
                needed=needed.holds(info.key, location),
                modified_at=info.modified_at,
                condemned_at=condemned_at,
                cutoffs=cutoffs,
            )
            if condemned_at is not None:
                found.present.add(location)
            if disposition in places:
                places[disposition][location] = info
            else:
                example = info.key if kind is Kind.UNKNOWN else None
                what = reachability.name_kind(kind, info.key)
                self.report.keep(what, disposition, bytes=info.size, example=example)
        return found

    def _report_objects(
        self, step: Step, why: Disposition, chosen: Mapping[str, ObjectInfo]
    ) -> None:
        for location in sorted(chosen):
            info = chosen[location]
            kind, _ = reachability.read_key(info.key)
            self.report.add(
                step, reachability.name_kind(kind, info.key), location, why, bytes=info.size
            )


@dataclass(kw_only=True)
class _SweepWork:
    """Stored objects by disposition and location."""

    condemn: dict[str, ObjectInfo] = field(default_factory=dict)
    sweep: dict[str, ObjectInfo] = field(default_factory=dict)
    spare: dict[str, ObjectInfo] = field(default_factory=dict)
    # Condemned objects that are still stored.
    present: set[str] = field(default_factory=set)
    # Number of objects that could not be swept, by reason.
    failed: dict[str, int] = field(default_factory=dict)


@dataclass
class _Sweep:
    """Carries out the dispositions of objects, except where a writer came first."""

    database: Database
    readers: Readers
    policy: RetentionPolicy
    time: Instant

    def __post_init__(self) -> None:
        # The database's own clock: `time` may come from another one.
        self.began = self.database.read(now)

    def apply(self, mark: ObjectMark, found: _SweepWork) -> None:
        """Condemn, spare and sweep; `found` then has what was done."""
        garbage_collection.spare_objects(self.database, found.spare)
        if found.condemn:
            sizes = {location: info.size for location, info in found.condemn.items()}
            done = garbage_collection.condemn_objects(self.database, sizes, self.time)
            found.condemn = {location: found.condemn[location] for location in done}
            reach(Failpoint.CLEANUP_CONDEMNED)
            self._spare_used(mark, found)
        due = {location: mark.condemned[location] for location in found.sweep}
        swept = self._sweep(due, found)
        found.sweep = {location: found.sweep[location] for location in swept}
        long_ago = self.time - self.policy.forget_after_seconds * 1_000_000
        gone = mark.condemned.keys() - found.present
        garbage_collection.forget_objects(
            self.database,
            {place: at for place in gone if (at := mark.condemned[place]) <= long_ago},
        )

    def _spare_used(self, before: ObjectMark, found: _SweepWork) -> None:
        """Spare objects that came into use between `before` and their mark.

        Later writers find the mark, so reading once is enough.
        """
        after = self.database.read(garbage_collection.mark_objects)
        needed = reachability.find_needed(self.readers, after, before)
        for location, info in list(found.condemn.items()):
            if needed.holds(info.key, location) is not False:
                found.spare[location] = found.condemn.pop(location)
        garbage_collection.spare_objects(self.database, found.spare)

    def _sweep(self, due: Mapping[str, Instant], found: _SweepWork) -> list[str]:
        """Delete the objects that are due, in batches; another cleanup may run at the same time."""
        swept: list[str] = []
        remaining = iter(sorted(due))
        while batch := list(islice(remaining, _SWEEP_BATCH)):
            try:
                done = self._sweep_batch({place: due[place] for place in batch}, found)
            except CatalogUnavailable as error:
                found.failed[error.message] = len(batch)
                break
            if done is None:
                found.failed[_BACKUP_RUNS] = len(batch) + sum(1 for _ in remaining)
                break
            swept += done
        return swept

    def _sweep_batch(self, due: Mapping[str, Instant], found: _SweepWork) -> list[str] | None:
        """Delete these objects and return those deleted; None if a backup needs them."""
        with garbage_collection.sweep_lock(self.database, wait_seconds=_SWEEP_LOCK_SECONDS):
            if self.database.read(garbage_collection.is_held):
                return None
            used = self._used_since(
                [
                    place
                    for place in due
                    if reachability.read_key(found.sweep[place].key)[0] is Kind.TABLE
                ]
            )
            claimed = garbage_collection.claim_objects(
                self.database,
                {place: at for place, at in due.items() if place not in used},
                self.time,
            )
            self.readers.objects.delete(found.sweep[place].key for place in claimed)
        garbage_collection.spare_objects(self.database, used)
        found.spare |= {place: found.sweep[place] for place in used}
        reach(Failpoint.CLEANUP_SWEPT)
        return claimed

    def _used_since(self, places: Sequence[str]) -> set[str]:
        """Return the table files that a version names which was made since the mark phase.

        A publication does not check a table's data files, so they are checked again here.
        """
        if not places:
            return set()
        since = Instant(self.began - _LONGEST_UNIT_SECONDS * 1_000_000)
        new = self.database.read(lambda c: garbage_collection.tables_since(c, since))
        named = self.readers.tables.needed(new)
        start = len(self.readers.objects.url) + 1
        return {place for place in places if reachability.table_file_of(place[start:]) in named}
