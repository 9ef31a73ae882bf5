"""Whether histories are sound: places, skip pointers, states and times of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection, select

from headgate.catalog.keeping import PAGE_ROWS, in_chunks
from headgate.catalog.schema import branches, transactions
from headgate.catalog.soundness import RESTORE, Finding
from headgate.model.history import Step, next_step_pointers
from headgate.model.ids import TransactionId
from headgate.model.nouns import TransactionState

# What is looked at where not all is: so many branches, and so many steps of each.
_BRANCHES = 200
_STEPS = 25


class Place(NamedTuple):
    """A transaction as far as its place in a history goes."""

    id: TransactionId
    dataset: str
    parent: TransactionId | None
    depth: int
    jump: TransactionId | None
    state: str
    opened_at: int
    closed_at: int | None
    publication: int | None


Find = Callable[[TransactionId], Place | None]

_PLACES = select(
    transactions.c.id,
    transactions.c.dataset_id,
    transactions.c.parent_id,
    transactions.c.depth,
    transactions.c.jump_id,
    transactions.c.state,
    transactions.c.opened_at,
    transactions.c.closed_at,
    transactions.c.publication,
)


def check_all_histories(connection: Connection) -> Iterator[Finding]:
    """Every transaction there is, one dataset at a time."""
    query = _PLACES.order_by(transactions.c.dataset_id).execution_options(yield_per=PAGE_ROWS)
    rows = (Place._make(row) for row in connection.execute(query))
    for _, group in groupby(rows, key=itemgetter(1)):
        places = {place.id: place for place in group}
        for place in places.values():
            yield from _wrongs(place, places.get)


def check_some_histories(connection: Connection) -> Iterator[Finding]:
    """The newest steps of the newest branches."""
    heads = select(branches.c.head_id).where(branches.c.head_id.is_not(None))
    newest = heads.order_by(branches.c.created_at.desc()).limit(_BRANCHES)
    look_up = _Looking(connection)
    layer = {TransactionId(id) for id in connection.execute(newest).scalars()}
    checked: set[TransactionId] = set()
    for _ in range(_STEPS):
        look_up.fetch_around(layer)
        for id in sorted(layer):
            place = look_up(id)
            # A head that does not exist is told of with its branch.
            if place is not None:
                yield from _wrongs(place, look_up)
        checked |= layer
        parents = (place.parent for id in layer if (place := look_up(id)) is not None)
        layer = {parent for parent in parents if parent is not None} - checked


class _Looking:
    """Finds places one by one, and remembers; fetches many at once where it is told which."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[TransactionId, Place | None] = {}

    def __call__(self, id: TransactionId) -> Place | None:
        if id not in self._known:
            self._fetch({id})
        return self._known[id]

    def fetch_around(self, ids: set[TransactionId]) -> None:
        """These, their parents, and what the parents' skip pointers lead to, twice over."""
        self._fetch(ids)
        layer = {place.parent for id in ids if (place := self._known[id]) and place.parent}
        for _ in range(3):
            self._fetch(layer)
            layer = {place.jump for id in layer if (place := self._known[id]) and place.jump}

    def _fetch(self, ids: set[TransactionId]) -> None:
        missing = ids - self._known.keys()
        self._known |= dict.fromkeys(missing)
        for part in in_chunks(missing):
            for row in self._connection.execute(_PLACES.where(transactions.c.id.in_(part))):
                self._known[row.id] = Place._make(row)


def _wrongs(place: Place, find: Find) -> Iterator[Finding]:
    parent = find(place.parent) if place.parent is not None else None
    for what in (*_wrong_by_itself(place), *_wrong_with_parent(place, parent, find)):
        yield Finding(what=what, where=f"transaction {place.id}", remedy=RESTORE)


def _wrong_by_itself(place: Place) -> Iterator[str]:
    is_open = place.state == TransactionState.OPEN
    if (place.closed_at is None) != is_open:
        yield f"it is {place.state}, but {'has' if is_open else 'has no'} time of closing"
    if (place.publication is not None) != (place.state == TransactionState.COMMITTED):
        named = "none" if place.publication is None else place.publication
        yield f"it is {place.state}, but its publication is {named}"
    if place.closed_at is not None and place.closed_at < place.opened_at:
        yield "it was closed before it was opened"


def _wrong_with_parent(place: Place, parent: Place | None, find: Find) -> Iterator[str]:
    if place.parent is not None:
        if parent is None or parent.dataset != place.dataset:
            yield f"its parent {place.parent} does not exist in its dataset"
            return
        if parent.state != TransactionState.COMMITTED:
            yield f"its parent {parent.id} is {parent.state}, not COMMITTED"
        if parent.closed_at is not None and place.opened_at <= parent.closed_at:
            yield f"it was opened before its parent {parent.id} was closed"
    try:
        above = _step(parent) if parent is not None else None
        depth, jump = next_step_pointers(above, lambda id: _step(_found(find, id)))
    except LookupError as error:
        yield f"the skip pointers above it lead to {error.args[0]}, which does not exist"
        return
    if place.depth != depth:
        yield f"its depth is {place.depth}, and should be {depth}"
    if place.jump != jump:
        yield f"its skip pointer is {place.jump or 'none'}, and should be {jump or 'none'}"


def _found(find: Find, id: TransactionId) -> Place:
    place = find(id)
    if place is None:
        raise LookupError(id)
    return place


def _step(place: Place) -> Step:
    return Step(id=place.id, parent=place.parent, depth=place.depth, jump=place.jump)
