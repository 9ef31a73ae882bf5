"""Cleanup: what nothing needs is condemned in the catalog, and its bytes swept a day later.

It stands beside writers: each step is a short unit of its own, and wherever somebody else was
first, cleanup gives way. Killed at any place, it leaves marks that the next one honours.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from headgate.catalog.database import Connection, Database, now
from headgate.catalog.garbage_collection import (
    ObjectMark,
    VersionMark,
    claim_objects,
    condemn_objects,
    condemn_versions,
    describe_versions,
    forget_objects,
    locations_of,
    mark_objects,
    mark_versions,
    spare_objects,
    spare_versions,
    sweeping_alone,
    tables_since,
)
from headgate.catalog.operations import forget_old_operations
from headgate.catalog.retention import (
    Keeping,
    find_keeping,
    forget_before,
    oldest_owner,
    remembered_since,
)
from headgate.catalog.transactions import record_event
from headgate.errors import CatalogUnavailable, Invalid
from headgate.files.trees import FileTrees
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, VersionId
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectInfo, ObjectStore
from headgate.upkeep.reachability import (
    Fate,
    Kind,
    Limits,
    MarkManifests,
    Readers,
    TableFiles,
    decide,
    find_needed,
    find_whole,
    name_kind,
    probe,
    read_key,
    table_file_of,
)

# How long cleanup waits before each step, and by which clocks.

DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What has to be how old, in seconds."""

    # How long a version is kept after a branch stopped showing it.
    retain_seconds: int
    # What is younger is never condemned.
    older_than_seconds: int = 7 * DAY_SECONDS
    # From condemning to sweeping, at least.
    sweep_after_seconds: int = DAY_SECONDS
    # How long the door remembers what was swept: longer than any writer sleeps.
    forget_after_seconds: int = 30 * DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Now, by the two clocks there are: leases and marks know the one, objects the other."""

    database: Instant
    store: Instant


Clock = Callable[[], Moments]


def check_older_than(seconds: int) -> int:
    """A grace that leaves every writer the time to publish what it has uploaded."""
    if seconds < DAY_SECONDS:
        raise Invalid(
            f"--older-than {seconds} s is too short: what is younger than 24 h may belong to a "
            "writer that has not published yet. Give 24h or more.",
            older_than_seconds=seconds,
        )
    return seconds


def read_clocks(database: Database, objects: ObjectStore) -> Moments:
    """Asks both; the store answers with the time it gives to a new object."""
    return Moments(database=database.read(now), store=probe(objects).modified_at)


def read_one_clock(database: Database) -> Moments:
    """For those who must not write: the database's clock for both."""
    moment = database.read(now)
    return Moments(database=moment, store=moment)


# What a cleanup did, or would do, and why.

_EXAMPLES = 20


class Step(enum.StrEnum):
    CONDEMN = "condemn"
    SWEEP = "sweep"
    # Condemned before, and needed again.
    SPARE = "spare"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing that was condemned, swept or spared: what, where, and why."""

    step: Step
    what: str
    where: str
    why: str
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How much is left alone for one reason, with some of it by name where that helps."""

    what: str
    why: str
    count: int
    bytes: int
    examples: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Cleaned:
    """The report of one cleanup."""

    dry_run: bool
    items: list[Item] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)

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
        """How many bytes the deleted objects had."""
        return sum(item.bytes for item in self.items if item.step is Step.SWEEP)

    @property
    def kept(self) -> list[Kept]:
        return [
            Kept(
                what=what,
                why=why,
                count=count,
                bytes=self._bytes[what, why],
                examples=tuple(self._examples.get((what, why), ())),
            )
            for (what, why), count in sorted(self._counts.items())
        ]

    def add(self, step: Step, what: str, where: str, why: str, *, bytes: int = 0) -> None:
        self.items.append(Item(step=step, what=what, where=where, why=why, bytes=bytes))

    def keep(
        self, what: str, why: str, *, count: int = 1, bytes: int = 0, example: str | None = None
    ) -> None:
        self._counts[what, why] += count
        self._bytes[what, why] += bytes
        if example is not None:
            shown = self._examples.setdefault((what, why), [])
            if len(shown) < _EXAMPLES:
                shown.append(example)

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


# The marks and deletions of one cleanup, in an order that gives way to everybody else.

# So many objects are deleted while others who delete, or take back, wait.
_SWEPT_AT_ONCE = 100
_ELSEWHERE_SECONDS = 5.0
# No unit of work takes longer from reading the clock to its commit.
_LONGEST_UNIT_SECONDS = 600


@dataclass(kw_only=True)
class Sorted:
    """Stored objects by what becomes of them, each under its location."""

    condemn: dict[str, ObjectInfo] = field(default_factory=dict)
    sweep: dict[str, ObjectInfo] = field(default_factory=dict)
    spare: dict[str, ObjectInfo] = field(default_factory=dict)
    # Of the condemned, those that are still there.
    present: set[str] = field(default_factory=set)
    # How many could not be swept, by what stood in the way.
    refused: dict[str, int] = field(default_factory=dict)


class Sweep:
    """Does to objects what was decided about them, except where somebody was quicker."""

    def __init__(self, database: Database, readers: Readers, terms: Terms, moment: Instant) -> None:
        self._database = database
        self._readers = readers
        self._objects = readers.objects
        self._terms = terms
        self._moment = moment
        # By the database itself: the moment given may be another one.
        self._began = database.read(now)

    def apply(self, mark: ObjectMark, found: Sorted) -> None:
        """Condemns, gives way, sweeps; `found` is left with what was really done."""
        spare_objects(self._database, found.spare)
        if found.condemn:
            sizes = {location: info.size for location, info in found.condemn.items()}
            done = condemn_objects(self._database, sizes, self._moment)
            found.condemn = {location: found.condemn[location] for location in done}
            reach(Failpoint.CLEANUP_CONDEMNED)
            self._give_way(mark, found)
        due = {location: mark.condemned[location] for location in found.sweep}
        swept = self._sweep(due, found)
        found.sweep = {location: found.sweep[location] for location in swept}
        long_ago = self._moment - self._terms.forget_after_seconds * 1_000_000
        gone = mark.condemned.keys() - found.present
        forget_objects(
            self._database,
            {place: at for place in gone if (at := mark.condemned[place]) <= long_ago},
        )

    def _give_way(self, before: ObjectMark, found: Sorted) -> None:
        """Takes back what somebody came to use between the look and the mark.

        Whoever comes later finds the mark, so one look is enough.
        """
        after = self._database.read(mark_objects)
        needed = find_needed(self._readers, after, before)
        for location, info in list(found.condemn.items()):
            if needed.holds(info.key, location) is not False:
                found.spare[location] = found.condemn.pop(location)
        spare_objects(self._database, found.spare)

    def _sweep(self, due: Mapping[str, Instant], found: Sorted) -> list[str]:
        """Deletes the bytes of what is due, some at a time; another cleanup may be at it too."""
        swept: list[str] = []
        remaining = iter(sorted(due))
        while batch := list(islice(remaining, _SWEPT_AT_ONCE)):
            try:
                swept += self._sweep_batch({place: due[place] for place in batch}, found)
            except CatalogUnavailable as refusal:
                found.refused[refusal.message] = len(batch)
                break
        return swept

    def _sweep_batch(self, due: Mapping[str, Instant], found: Sorted) -> Sequence[str]:
        with sweeping_alone(self._database, wait_seconds=_ELSEWHERE_SECONDS):
            used = self._used_since([place for place in due if _is_table(found.sweep[place])])
            claimed = claim_objects(
                self._database,
                {place: at for place, at in due.items() if place not in used},
                self._moment,
            )
            self._objects.delete(found.sweep[place].key for place in claimed)
        spare_objects(self._database, used)
        found.spare |= {place: found.sweep[place] for place in used}
        reach(Failpoint.CLEANUP_SWEPT)
        return claimed

    def _used_since(self, places: Sequence[str]) -> set[str]:
        """Of these table files, those that a version names which came after the look.

        The door does not know a table's files, so they are looked for once more, just before.
        """
        if not places:
            return set()
        since = Instant(self._began - _LONGEST_UNIT_SECONDS * 1_000_000)
        new = self._database.read(lambda connection: tables_since(connection, since))
        named = self._readers.tables.needed(new)
        start = len(self._objects.url) + 1
        return {place for place in places if table_file_of(place[start:]) in named}


def _is_table(info: ObjectInfo) -> bool:
    return read_key(info.key)[0] is Kind.TABLE


def clean_up(
    database: Database,
    objects: ObjectStore,
    terms: Terms,
    *,
    actor: str,
    dry_run: bool = False,
    clock: Clock | None = None,
    mark_manifests: MarkManifests | None = None,
) -> Cleaned:
    """Condemns what nothing needs, sweeps what was condemned before; or only says what and why.

    `mark_manifests` reads the manifests of tables in some other place than this process.
    """
    if clock is not None:
        moments = clock()
    else:
        moments = read_one_clock(database) if dry_run else read_clocks(database, objects)
    work = _Cleanup(database, objects, terms, moments, Cleaned(dry_run=dry_run))
    work.clean(mark_manifests)
    if not dry_run:
        database.write(forget_old_operations)
        work.record(actor)
    return work.cleaned


class _Cleanup:
    """The steps of one cleanup, in their order."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        terms: Terms,
        moments: Moments,
        cleaned: Cleaned,
    ) -> None:
        self.cleaned = cleaned
        self._database = database
        self._objects = objects
        self._terms = terms
        self._moments = moments

    def clean(self, mark_manifests: MarkManifests | None) -> None:
        keeping, versions, age_us = self._database.read(self._look)
        self._readers = Readers(
            objects=self._objects,
            trees=FileTrees(self._objects),
            tables=TableFiles(
                self._objects, since=self._forget(keeping.horizon), mark=mark_manifests
            ),
        )
        spared = self._spare_versions(versions.spare)
        condemned = versions.condemn
        if not self.cleaned.dry_run:
            condemned = self._condemn_versions(versions.condemn, keeping)
        self._report_versions(versions, condemned)
        left_out = condemned if self.cleaned.dry_run else ()
        mark = self._database.read(lambda connection: mark_objects(connection, left_out))
        kept = replace(
            mark,
            roots=mark.roots | spared[DatasetKind.FILES],
            tables=mark.tables | spared[DatasetKind.TABLE],
        )
        found = self._sort(kept, age_us)
        if not self.cleaned.dry_run:
            Sweep(self._database, self._readers, self._terms, self._moments.database).apply(
                mark, found
            )
            for reason, count in found.refused.items():
                self.cleaned.keep("object", reason, count=count)
        for step, chosen in (
            (Step.SPARE, found.spare),
            (Step.CONDEMN, found.condemn),
            (Step.SWEEP, found.sweep),
        ):
            self._report_objects(step, chosen)

    def record(self, actor: str) -> None:
        """Leaves an event in the ledger, if anything was done."""
        done = self.cleaned
        if not done.items:
            return

        def work(connection: Connection) -> None:
            record_event(
                connection,
                at=self._moments.database,
                actor=actor,
                kind="cleanup",
                condemned=done.condemned,
                deleted=done.deleted,
                spared=done.spared,
                bytes=done.bytes,
            )

        self._database.write(work)

    def _forget(self, horizon: Instant) -> Instant:
        """From here on no version lists the snapshots that were last shown before the horizon."""
        if not self.cleaned.dry_run:
            return forget_before(self._database, horizon)
        return max(horizon, self._database.read(remembered_since))

    # --- versions ---------------------------------------------------------------------------

    def _look(self, connection: Connection) -> tuple[Keeping, VersionMark, int]:
        """What is kept, what could go, and how old a thing must be to go."""
        moment = self._moments.database
        keeping = find_keeping(connection, retain_seconds=self._terms.retain_seconds, moment=moment)
        age_us = self._terms.older_than_seconds * 1_000_000
        owner = oldest_owner(connection, moment)
        if owner is not None:
            # Never younger than the oldest who may still publish what was there before.
            age_us = max(age_us, moment - owner)
        older_than = Instant(max(0, moment - age_us))
        return keeping, mark_versions(connection, keeping, older_than), age_us

    def _condemn_versions(
        self, ids: Collection[VersionId], keeping: Keeping
    ) -> tuple[VersionId, ...]:
        condemned = condemn_versions(self._database, ids, keeping, self._moments.database)
        if condemned:
            reach(Failpoint.CLEANUP_CONDEMNED)
        return tuple(condemned)

    def _spare_versions(self, ids: Collection[VersionId]) -> dict[DatasetKind, set[str]]:
        """Gives back versions that are needed again, and their objects, if all are still there."""
        roots = self._database.read(lambda connection: locations_of(connection, ids))
        spared: dict[DatasetKind, set[str]] = {kind: set() for kind in DatasetKind}
        for id, (kind, root) in roots.items():
            if self.cleaned.dry_run:
                whole = find_whole(self._readers, kind, root) is not None
            else:
                whole = self._spare_version(id, kind, root)
            if whole:
                spared[kind].add(root)
                self.cleaned.add(Step.SPARE, "version", id, Fate.SPARE)
            else:
                why = "it is needed again, but parts of it were swept"
                self.cleaned.keep("condemned version", why, example=id)
        return spared

    def _spare_version(self, id: VersionId, kind: DatasetKind, root: str) -> bool:
        with sweeping_alone(self._database):
            locations = find_whole(self._readers, kind, root)
            if locations is None:
                return False
            spare_objects(self._database, locations)
            spare_versions(self._database, [id])
        return True

    def _report_versions(self, mark: VersionMark, condemned: Collection[VersionId]) -> None:
        for reason, count in mark.kept.items():
            self.cleaned.keep("version", reason, count=count)
        if mark.too_young:
            self.cleaned.keep("version", Fate.YOUNG, count=mark.too_young)
        described = self._database.read(
            lambda connection: list(describe_versions(connection, condemned))
        )
        for where, why in described:
            self.cleaned.add(Step.CONDEMN, "version", where, why)

    # --- objects ----------------------------------------------------------------------------

    def _sort(self, mark: ObjectMark, age_us: int) -> Sorted:
        """Every stored object, looked at once."""
        needed = find_needed(self._readers, mark)
        limits = Limits(
            young_since=Instant(self._moments.store - age_us),
            fresh_since=Instant(
                self._moments.database - self._terms.sweep_after_seconds * 1_000_000
            ),
        )
        found = Sorted()
        places = {Fate.CONDEMN: found.condemn, Fate.SWEEP: found.sweep, Fate.SPARE: found.spare}
        for info in self._objects.list():
            kind, _ = read_key(info.key)
            location = f"{self._objects.url}/{info.key}"
            condemned_at = mark.condemned.get(location)
            fate = decide(
                kind,
                needed=needed.holds(info.key, location),
                modified_at=info.modified_at,
                condemned_at=condemned_at,
                limits=limits,
            )
            if condemned_at is not None:
                found.present.add(location)
            if fate in places:
                places[fate][location] = info
            else:
                example = info.key if kind is Kind.UNKNOWN else None
                what = name_kind(kind, info.key)
                self.cleaned.keep(what, fate, bytes=info.size, example=example)
        return found

    def _report_objects(self, step: Step, chosen: Mapping[str, ObjectInfo]) -> None:
        why = {Step.SPARE: Fate.SPARE, Step.CONDEMN: Fate.CONDEMN, Step.SWEEP: Fate.SWEEP}[step]
        for location in sorted(chosen):
            info = chosen[location]
            kind, _ = read_key(info.key)
            self.cleaned.add(step, name_kind(kind, info.key), location, why, bytes=info.size)
