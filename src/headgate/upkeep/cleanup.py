"""Cleanup: what nothing needs is condemned in the catalog, and its bytes swept a day later.

It stands beside writers: each step is a short unit of its own, and wherever somebody else was
first, cleanup gives way. Killed at any place, it leaves marks that the next one honours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from headgate.catalog.condemning import (
    ObjectMark,
    VersionMark,
    condemn_objects,
    condemn_versions,
    describe_versions,
    locations_of,
    mark_objects,
    mark_versions,
    spare_objects,
    spare_versions,
)
from headgate.catalog.database import Connection, Database
from headgate.catalog.keeping import Keeping, find_keeping, oldest_owner
from headgate.catalog.operations import forget_old_operations
from headgate.catalog.sweeping import claim_objects, forget_objects, sweeping_alone
from headgate.catalog.writes import record_event
from headgate.errors import CatalogUnavailable
from headgate.files.trees import FileTrees
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, VersionId
from headgate.model.ports import ObjectInfo, ObjectStore
from headgate.upkeep.cleaned import Cleaned, Step
from headgate.upkeep.needing import find_needed, find_whole
from headgate.upkeep.sorting import Fate, Kind, Limits, decide, read_key
from headgate.upkeep.terms import Clock, Moments, Terms, read_clocks, read_one_clock

# So many objects are deleted while others who delete, or take back, wait.
_SWEPT_AT_ONCE = 100
_ELSEWHERE_SECONDS = 5.0


def clean_up(
    database: Database,
    objects: ObjectStore,
    terms: Terms,
    *,
    actor: str,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> Cleaned:
    """Condemns what nothing needs, sweeps what was condemned before; or only says what and why."""
    if clock is not None:
        moments = clock()
    else:
        moments = read_one_clock(database) if dry_run else read_clocks(database, objects)
    work = _Cleanup(database, objects, terms, moments, Cleaned(dry_run=dry_run))
    work.clean()
    if not dry_run:
        database.write(forget_old_operations)
        work.record(actor)
    return work.cleaned


@dataclass(kw_only=True)
class _Sorted:
    """Stored objects by what becomes of them, each under its location."""

    condemn: dict[str, ObjectInfo] = field(default_factory=dict)
    sweep: dict[str, ObjectInfo] = field(default_factory=dict)
    spare: dict[str, ObjectInfo] = field(default_factory=dict)
    # Of the condemned, those that are still there.
    present: set[str] = field(default_factory=set)


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
        self._trees = FileTrees(objects)
        self._terms = terms
        self._moments = moments

    def clean(self) -> None:
        keeping, versions, age_us = self._database.read(self._look)
        spared = self._spare_versions(versions.spare)
        condemned = versions.condemn
        if not self.cleaned.dry_run:
            condemned = self._condemn_versions(versions.condemn, keeping)
        self._report_versions(versions, condemned)
        left_out = condemned if self.cleaned.dry_run else ()
        mark = self._database.read(lambda connection: mark_objects(connection, left_out))
        found = self._sort(replace(mark, roots=mark.roots | spared), age_us)
        if not self.cleaned.dry_run:
            self._apply(mark, found)
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

    def _spare_versions(self, ids: Collection[VersionId]) -> set[str]:
        """Gives back versions that are needed again, and their objects, if all are still there."""
        roots = self._database.read(lambda connection: locations_of(connection, ids))
        spared: set[str] = set()
        for id, root in roots.items():
            if self.cleaned.dry_run:
                whole = find_whole(self._objects, self._trees, root) is not None
            else:
                whole = self._spare_version(id, root)
            if whole:
                spared.add(root)
                self.cleaned.add(Step.SPARE, "version", id, Fate.SPARE)
            else:
                why = "it is needed again, but parts of it were swept"
                self.cleaned.keep("condemned version", why, example=id)
        return spared

    def _spare_version(self, id: VersionId, root: str) -> bool:
        with sweeping_alone(self._database):
            locations = find_whole(self._objects, self._trees, root)
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

    def _sort(self, mark: ObjectMark, age_us: int) -> _Sorted:
        """Every stored object, looked at once."""
        needed = find_needed(self._trees, mark, mark.roots)
        limits = Limits(
            young_since=Instant(self._moments.store - age_us),
            fresh_since=Instant(
                self._moments.database - self._terms.sweep_after_seconds * 1_000_000
            ),
        )
        found = _Sorted()
        places = {Fate.CONDEMN: found.condemn, Fate.SWEEP: found.sweep, Fate.SPARE: found.spare}
        for info in self._objects.list():
            kind, digest = read_key(info.key)
            location = f"{self._objects.url}/{info.key}"
            condemned_at = mark.condemned.get(location)
            fate = decide(
                kind,
                needed=needed.holds(kind, digest, location),
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
                self.cleaned.keep(kind, fate, bytes=info.size, example=example)
        return found

    def _apply(self, mark: ObjectMark, found: _Sorted) -> None:
        moment = self._moments.database
        spare_objects(self._database, found.spare)
        if found.condemn:
            sizes = {location: info.size for location, info in found.condemn.items()}
            done = condemn_objects(self._database, sizes, moment)
            found.condemn = {location: found.condemn[location] for location in done}
            reach(Failpoint.CLEANUP_CONDEMNED)
            self._give_way(mark, found)
        due = {location: mark.condemned[location] for location in found.sweep}
        swept = self._sweep(due, found.sweep)
        found.sweep = {location: found.sweep[location] for location in swept}
        long_ago = moment - self._terms.forget_after_seconds * 1_000_000
        gone = mark.condemned.keys() - found.present
        forget_objects(
            self._database,
            {place: at for place in gone if (at := mark.condemned[place]) <= long_ago},
        )

    def _give_way(self, before: ObjectMark, found: _Sorted) -> None:
        """Takes back what somebody came to use between the look and the mark.

        Whoever comes later finds the mark, so one look is enough.
        """
        after = self._database.read(mark_objects)
        needed = find_needed(self._trees, after, after.roots - before.roots)
        for location, info in list(found.condemn.items()):
            kind, digest = read_key(info.key)
            if needed.holds(kind, digest, location):
                found.spare[location] = found.condemn.pop(location)
        spare_objects(self._database, found.spare)

    def _sweep(self, due: Mapping[str, Instant], stored: Mapping[str, ObjectInfo]) -> list[str]:
        """Deletes the bytes of what is due, some at a time; another cleanup may be at it too."""
        swept: list[str] = []
        remaining = iter(sorted(due))
        while batch := list(islice(remaining, _SWEPT_AT_ONCE)):
            try:
                swept += self._sweep_batch({place: due[place] for place in batch}, stored)
            except CatalogUnavailable as refusal:
                self.cleaned.keep("object", refusal.message, count=len(batch))
                break
        return swept

    def _sweep_batch(
        self, due: Mapping[str, Instant], stored: Mapping[str, ObjectInfo]
    ) -> Sequence[str]:
        with sweeping_alone(self._database, wait_seconds=_ELSEWHERE_SECONDS):
            claimed = claim_objects(self._database, due, self._moments.database)
            self._objects.delete(stored[place].key for place in claimed)
        reach(Failpoint.CLEANUP_SWEPT)
        return claimed

    def _report_objects(self, step: Step, chosen: Mapping[str, ObjectInfo]) -> None:
        why = {Step.SPARE: Fate.SPARE, Step.CONDEMN: Fate.CONDEMN, Step.SWEEP: Fate.SWEEP}[step]
        for location in sorted(chosen):
            info = chosen[location]
            kind, _ = read_key(info.key)
            self.cleaned.add(step, kind, location, why, bytes=info.size)
