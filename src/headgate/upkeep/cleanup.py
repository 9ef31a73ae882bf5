"""Cleanup: what nothing needs is condemned in the catalog, and its bytes swept a day later.

It stands beside writers: each step is a short unit of its own, and wherever somebody else was
first, cleanup gives way. Killed at any place, it leaves marks that the next one honours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headgate.catalog.condemning import (
    ObjectMark,
    VersionMark,
    condemn_versions,
    describe_versions,
    locations_of,
    mark_objects,
    mark_versions,
    spare_objects,
    spare_versions,
)
from headgate.catalog.database import Connection, Database
from headgate.catalog.forgetting import forget_before, remembered_since
from headgate.catalog.keeping import Keeping, find_keeping, oldest_owner
from headgate.catalog.operations import forget_old_operations
from headgate.catalog.sweeping import sweeping_alone
from headgate.catalog.writes import record_event
from headgate.files.trees import FileTrees
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, VersionId
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectInfo, ObjectStore
from headgate.upkeep.cleaned import Cleaned, Step
from headgate.upkeep.needing import Readers, find_needed, find_whole
from headgate.upkeep.sorting import (
    Fate,
    Kind,
    Limits,
    decide,
    name_kind,
    read_key,
)
from headgate.upkeep.sweep import Sorted, Sweep
from headgate.upkeep.table_files import MarkManifests, TableFiles
from headgate.upkeep.terms import Clock, Moments, Terms, read_clocks, read_one_clock


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
