"""The marks and deletions of one cleanup, in an order that gives way to everybody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from headgate.catalog.condemning import (
    ObjectMark,
    condemn_objects,
    mark_objects,
    spare_objects,
    tables_since,
)
from headgate.catalog.database import Database, now
from headgate.catalog.sweeping import claim_objects, forget_objects, sweeping_alone
from headgate.errors import CatalogUnavailable
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant
from headgate.model.ports import ObjectInfo
from headgate.upkeep.needing import Readers, find_needed
from headgate.upkeep.sorting import Kind, read_key, table_file_of
from headgate.upkeep.terms import Terms

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
