"""Consistency checks of the catalog: its file, log, leases, branches, versions and histories.

Each check examines one subject and yields a finding for each defect. No check changes anything.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, and_, func, or_, select, text, union, union_all

from headgate.catalog import records
from headgate.catalog.database import now
from headgate.catalog.recovery import list_intents
from headgate.catalog.retention import PAGE_ROWS, remembered_since
from headgate.catalog.schema import (
    attempts,
    branches,
    datasets,
    deleted_branches,
    holds,
    log_counter,
    moves,
    publications,
    tags,
    transactions,
    units,
    versions,
)
from headgate.model.ancestry import Step, next_step_pointers
from headgate.model.ids import Instant, TransactionId, instant_text
from headgate.model.nouns import AttemptState, DatasetKind, TransactionState
from headgate.model.rules import FLAGGED, rules_note

RESTORE = "Restore the catalog from a backup; nothing here mends it."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One defect: its description, its place and its remedy."""

    what: str
    where: str
    remedy: str


def _damage(what: str, where: str) -> Finding:
    return Finding(what=what, where=where, remedy=RESTORE)


# --- the file -------------------------------------------------------------------------------


def check_sqlite(connection: Connection, *, deep: bool) -> Iterator[Finding]:
    """Check the pages of the file and its foreign keys; `deep` checks the indexes too."""
    pragma = "integrity_check" if deep else "quick_check"
    for result in connection.execute(text(f"PRAGMA {pragma}(100)")).scalars():
        if result != "ok":
            yield _damage(f"the file is damaged: {result}", "SQLite")
    for table, row, other, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield _damage(
            f"row {row} of {table} refers to a row of {other} that is not there", "SQLite"
        )


# --- the log --------------------------------------------------------------------------------


def check_counter(connection: Connection) -> Iterator[Finding]:
    """Check that the counter is at the newest publication and that no number is missing."""
    counter = connection.execute(select(log_counter)).one_or_none()
    if counter is None:
        yield _in_log("the log has no counter, so nothing can be published")
        return
    query = select(
        func.count(), func.min(publications.c.number), func.max(publications.c.number)
    ).select_from(publications)
    count, first, last = connection.execute(query).one()
    if (last or 0) != counter.number:
        yield _in_log(
            f"the counter is at {counter.number}, the newest publication is {last or 'none'}"
        )
    if count and (first, last) != (1, count):
        yield _in_log(f"there are {count} publications, numbered from {first} to {last}")
    newest = select(publications.c.at).where(publications.c.number == last)
    at = connection.execute(newest).scalar_one_or_none() if last else None
    if at is not None and at != counter.last_at:
        yield _in_log("the counter's time is not the newest publication's")


def check_views_follow_log(connection: Connection) -> Iterator[Finding]:
    """Check that the view of each branch is the target of its newest move."""

    def newest(column: Any) -> Any:
        return (
            select(column)
            .where(moves.c.branch_id == branches.c.id)
            .order_by(moves.c.publication.desc(), moves.c.ordinal.desc())
            .limit(1)
            .scalar_subquery()
        )

    query = select(
        branches.c.name,
        branches.c.view_id,
        newest(moves.c.to_id).label("logged"),
        newest(moves.c.change).label("change"),
        *records.DATASET_NAME,
    ).join(datasets, datasets.c.id == branches.c.dataset_id)
    for row in connection.execute(query).mappings():
        where = f"{records.dataset_name(row)}@{row['name']}"
        if row["change"] is None or row["change"] == "deleted":
            entry = "has not created it" if row["change"] is None else "has deleted it"
            yield _damage(f"the branch exists, but the log {entry}", where)
        elif row["logged"] != row["view_id"]:
            shown, logged = row["view_id"] or "nothing", row["logged"] or "nothing"
            yield _damage(f"the branch shows {shown}, but by the log it shows {logged}", where)


def check_log_replays(connection: Connection) -> Iterator[Finding]:
    """Check that each move starts where the last one of its branch ended, and that times rise."""
    over: dict[str, Any] = {
        "partition_by": moves.c.branch_id,
        "order_by": (moves.c.publication, moves.c.ordinal),
    }
    steps = select(
        moves.c.publication,
        moves.c.branch_name,
        moves.c.change,
        moves.c.from_id,
        func.lag(moves.c.to_id).over(**over).label("before"),
        func.lag(moves.c.change).over(**over).label("last_change"),
    ).subquery()
    broken = select(steps).where(
        steps.c.from_id.is_distinct_from(steps.c.before)
        | ((steps.c.change == "created") & steps.c.last_change.is_not(None))
        | ((steps.c.change != "created") & steps.c.last_change.is_(None))
        | ((steps.c.last_change == "deleted") != (steps.c.change == "restored"))
    )
    for row in connection.execute(broken):
        yield _in_log(
            f"publication {row.publication} moves {row.branch_name!r} from "
            f"{row.from_id or 'nothing'}, but it was at {row.before or 'nothing'}"
        )
    earlier = publications.alias("earlier")
    back = select(publications.c.number).join(
        earlier, earlier.c.number == publications.c.number - 1
    )
    for number in connection.execute(back.where(publications.c.at <= earlier.c.at)).scalars():
        yield _in_log(f"publication {number} is not later than the one before it")
    yield from _orphans(connection)


def _orphans(connection: Connection) -> Iterator[Finding]:
    """Yield publications without moves, moves without publications, and branches lost from the log.

    The queries use joins, because PostgreSQL evaluates `NOT IN` in quadratic time.
    """
    of = moves.c.publication == publications.c.number
    idle = select(publications.c.number).outerjoin(moves, of).where(moves.c.publication.is_(None))
    for number in connection.execute(idle).scalars():
        yield _in_log(f"publication {number} has no moves")
    strays = select(moves.c.publication).distinct().outerjoin(publications, of)
    for number in connection.execute(strays.where(publications.c.number.is_(None))).scalars():
        yield _in_log(f"there are moves of publication {number}, which does not exist")
    ends = moves.alias("ends")
    ended = and_(ends.c.branch_id == moves.c.branch_id, ends.c.change == "deleted")
    lost = (
        select(moves.c.branch_name)
        .outerjoin(branches, branches.c.id == moves.c.branch_id)
        .outerjoin(ends, ended)
        .where(moves.c.change == "created", branches.c.id.is_(None), ends.c.branch_id.is_(None))
    )
    for name in connection.execute(lost).scalars():
        yield _in_log(f"the branch {name!r} is gone, but the log has not deleted it")


def _in_log(what: str) -> Finding:
    return _damage(what, "the log")


# --- unfinished work ------------------------------------------------------------------------


def check_leases(connection: Connection) -> Iterator[Finding]:
    """Check for OPEN transactions and units whose lease has expired."""
    moment = now(connection)
    held = (
        select(
            transactions.c.id,
            transactions.c.actor,
            transactions.c.lease_until,
            transactions.c.branch_name,
            *records.DATASET_NAME,
        )
        .join(datasets, datasets.c.id == transactions.c.dataset_id)
        .where(transactions.c.state == TransactionState.OPEN, transactions.c.lease_until < moment)
    )
    for row in connection.execute(held).mappings():
        yield Finding(
            what=f"transaction {row['id']} of {row['actor']} is OPEN, and its lease ran out "
            f"{_ago(moment, row['lease_until'])} ago",
            where=f"{records.dataset_name(row)}@{row['branch_name']}",
            remedy=f"If no writer uses it: headgate txn abort {row['id']} (`headgate recover` "
            "does it some time later).",
        )
    query = select(units).where(
        units.c.state == TransactionState.OPEN, units.c.lease_until < moment
    )
    for row in connection.execute(query).mappings():
        yield Finding(
            what=f"unit {row['id']} of {row['actor']} is open, and its lease ran out "
            f"{_ago(moment, row['lease_until'])} ago",
            where=f"branch {row['branch_name']}",
            remedy=f"If no writer uses it: headgate txn abort {row['id']}.",
        )


_CORRECT = (
    "If this clock is wrong, correct it. If it was ahead and is right now, run `headgate recover "
    "--clock-was-ahead`."
)


def check_clock(connection: Connection) -> Iterator[Finding]:
    """Check for times in the future: of publications, transactions, leases and cleanup."""
    moment = now(connection)
    limit = moment + records.SKEW_US

    def find(what: str) -> Finding:
        return Finding(what=what, where="the clock", remedy=_CORRECT)

    ahead = select(
        func.count(),
        func.min(publications.c.number),
        func.max(publications.c.number),
        func.max(publications.c.at),
    ).where(publications.c.at > limit)
    count, first, last, at = connection.execute(ahead).one()
    if count:
        many = f"publications {first} to {last} are" if count > 1 else f"publication {first} is"
        yield find(
            f"{many} in the future, up to {instant_text(at)}; new ones are added after them, "
            f"and it is {instant_text(moment)}"
        )
    opened = select(func.count()).where(
        transactions.c.state != TransactionState.COMMITTED,
        (transactions.c.opened_at > limit) | (transactions.c.closed_at > limit),
    )
    if count := connection.execute(opened).scalar_one():
        yield find(f"{count} transactions that are OPEN or ABORTED are from the future")
    for table, name, held in (
        (transactions, "transactions", TransactionState.OPEN),
        (units, "units", TransactionState.OPEN),
        (attempts, "attempts", AttemptState.RUNNING),
    ):
        long = select(func.count(), func.max(table.c.lease_until)).where(
            table.c.state == held, records.is_too_long(table, moment)
        )
        count, until = connection.execute(long).one()
        if count:
            yield find(
                f"{count} {name} have leases until {instant_text(until)}, longer than any that is "
                "granted; other writers do not wait for them"
            )
    since = remembered_since(connection)
    if since > limit:
        yield find(
            f"a cleanup has forgotten the snapshots of tables until {instant_text(since)}, also "
            "those that will be made until then"
        )


def count_silent_attempts(connection: Connection) -> int:
    """Count running attempts with an expired lease; a newer attempt of their key takes over."""
    query = select(func.count()).where(
        attempts.c.state == AttemptState.RUNNING, attempts.c.lease_until < now(connection)
    )
    return int(connection.execute(query).scalar_one())


def check_intents(connection: Connection) -> Iterator[Finding]:
    """Check for publications to lakeFS that the catalog has not recorded."""
    moment = now(connection)
    for intent in list_intents(connection):
        where = f"operation {intent.operation} of {intent.actor}"
        if intent.move is None:
            yield Finding(
                what="its intent cannot be read, so recovery leaves it alone",
                where=where,
                remedy="Check the lakeFS branches that tasks publish to, then delete intent "
                f"{intent.id} from the catalog's table intents.",
            )
        elif intent.lease_until < moment:
            yield Finding(
                what=f"its move of branch {intent.move.branch!r} of {intent.move.repository!r} in "
                f"lakeFS has no record, and its lease ran out "
                f"{_ago(moment, intent.lease_until)} ago",
                where=where,
                remedy="Run `headgate recover`.",
            )


def _ago(moment: Instant, then: int) -> str:
    seconds = max(0, moment - then) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


# --- branches, tags and versions ------------------------------------------------------------

_heads = transactions.alias("heads")
_views = transactions.alias("views")
_parents = branches.alias("parents")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A version that a client may read at any time, and one place where it is visible."""

    where: str
    kind: DatasetKind
    owned: bool
    location: str


def check_branches(connection: Connection) -> Iterator[Finding]:
    """Check that head, view and parent of each branch exist and belong together."""
    query = (
        select(
            branches,
            *records.DATASET_NAME,
            _heads.c.id.label("found_head"),
            _heads.c.state.label("head_state"),
            _heads.c.parent_id.label("head_parent"),
            _heads.c.dataset_id.label("head_dataset"),
            _views.c.id.label("found_view"),
            _views.c.state.label("view_state"),
            _views.c.dataset_id.label("view_dataset"),
            _parents.c.id.label("found_parent"),
            _parents.c.dataset_id.label("parent_dataset"),
        )
        .join(datasets, datasets.c.id == branches.c.dataset_id)
        .outerjoin(_heads, _heads.c.id == branches.c.head_id)
        .outerjoin(_views, _views.c.id == branches.c.view_id)
        .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
    )
    parents: dict[str, str | None] = {}
    names: dict[str, str] = {}
    for row in connection.execute(query).mappings():
        dataset = records.dataset_name(row)
        where = f"{dataset}@{row['name']}"
        parents[row["id"]], names[row["id"]] = row["parent_id"], where
        for what in (*_pointer_defects(row), *_head_defects(row)):
            yield _damage(what, where)
        if row["parent_id"] and row["parent_dataset"] != row["dataset_id"]:
            gone = "does not exist" if row["found_parent"] is None else "is of another dataset"
            yield Finding(
                what=f"its parent branch {row['parent_id']} {gone}",
                where=where,
                remedy=f"headgate branch reparent {dataset} {row['name']} --under PARENT",
            )
    yield from _cycles(parents, names)


def _pointer_defects(row: RowMapping) -> Iterator[str]:
    for pointer in ("head", "view"):
        id = row[f"{pointer}_id"]
        if id is None:
            continue
        if row[f"found_{pointer}"] is None:
            yield f"its {pointer} is {id}, which does not exist"
        elif row[f"{pointer}_dataset"] != row["dataset_id"]:
            yield f"its {pointer} is {id}, which is of another dataset"


def _head_defects(row: RowMapping) -> Iterator[str]:
    """Check that the view is COMMITTED, and the head is the view or an OPEN child of the view."""
    head, view = row["head_id"], row["view_id"]
    if row["view_state"] not in {None, TransactionState.COMMITTED}:
        yield f"its view {view} is {row['view_state']}, not COMMITTED"
    if head == view:
        return
    if head is None:
        yield f"it has the view {view}, but no head"
    elif row["head_state"] not in {None, TransactionState.OPEN}:
        yield f"its head {head} is {row['head_state']}, but it is not its view"
    elif row["head_state"] and row["head_parent"] != view:
        yield f"its head {head} is OPEN on {row['head_parent'] or 'nothing'}, not on its view"


def _cycles(parents: dict[str, str | None], names: dict[str, str]) -> Iterator[Finding]:
    done: set[str] = set()
    for start in parents:
        path: list[str] = []
        here: str | None = start
        while here is not None and here not in done and here not in path:
            path.append(here)
            here = parents.get(here)
        if here in path:
            ring = [names[id] for id in path[path.index(here) :]]
            yield Finding(
                what=f"it is its own ancestor: {' under '.join([*ring, ring[0]])}",
                where=ring[0],
                remedy="Take one out of the ring: headgate branch reparent DATASET NAME --under …",
            )
        done.update(path)


def check_open(connection: Connection) -> Iterator[Finding]:
    """Check that each OPEN transaction is the head of a branch, and a branch has at most one."""
    lost = (
        select(transactions.c.id, transactions.c.branch_name)
        .outerjoin(branches, branches.c.head_id == transactions.c.id)
        .where(transactions.c.state == TransactionState.OPEN, branches.c.id.is_(None))
    )
    for id, name in connection.execute(lost):
        yield Finding(
            what=f"transaction {id} is OPEN, but no branch has it as its head",
            where=f"branch {name}",
            remedy=f"headgate txn abort {id}",
        )
    # Counted in Python: a database that groups them reads all transactions.
    held = select(transactions.c.branch_id, transactions.c.branch_name).where(
        transactions.c.state == TransactionState.OPEN
    )
    counts = Counter((id, name) for id, name in connection.execute(held))
    for (_, name), count in counts.items():
        if count > 1:
            yield Finding(
                what=f"{count} transactions are OPEN on it at once",
                where=f"branch {name}",
                remedy="Abort all but the one that is its head: headgate txn abort TXN",
            )


def check_tags(connection: Connection) -> Iterator[Finding]:
    """Check that each tag pins a COMMITTED transaction of its dataset."""
    query = (
        select(
            tags.c.name.label("tag"),
            tags.c.transaction_id,
            tags.c.dataset_id,
            transactions.c.state,
            transactions.c.dataset_id.label("found_dataset"),
            *records.DATASET_NAME,
        )
        .join(datasets, datasets.c.id == tags.c.dataset_id)
        .outerjoin(transactions, transactions.c.id == tags.c.transaction_id)
    )
    for row in connection.execute(query).mappings():
        same = row["found_dataset"] == row["dataset_id"]
        if not same or row["state"] != TransactionState.COMMITTED:
            state = row["state"] if same else "no transaction of this dataset"
            dataset = records.dataset_name(row)
            yield Finding(
                what=f"it pins {row['transaction_id']}, which is {state}",
                where=f"tag {row['tag']} of {dataset}",
                remedy=f"headgate tag delete {dataset} {row['tag']}",
            )


def check_rules(connection: Connection) -> Iterator[Finding]:
    """Find views with rows that an engine wrote against the constraints of the table."""
    query = (
        select(branches.c.name.label("branch"), transactions.c.provenance, *records.DATASET_NAME)
        .join(transactions, transactions.c.id == branches.c.view_id)
        .join(datasets, datasets.c.id == branches.c.dataset_id)
        .where(transactions.c.provenance.contains(f'"{FLAGGED}"'))
    )
    for row in connection.execute(query).mappings():
        if note := rules_note(records.load(row["provenance"])):
            yield Finding(
                what=note,
                where=f"{records.dataset_name(row)}@{row['branch']}",
                remedy="Correct the rows by `headgate mutate`, then apply the schema file again: "
                "`headgate schema apply` validates all rows.",
            )


def check_holds(connection: Connection) -> Iterator[Finding]:
    """Check that each hold is of a branch, and of a publication that moved it."""
    known = union_all(
        select(branches.c.id, branches.c.name),
        select(deleted_branches.c.id, deleted_branches.c.name),
    ).subquery()
    query = (
        select(holds.c.branch_id, holds.c.publication, known.c.name, moves.c.publication)
        .outerjoin(known, known.c.id == holds.c.branch_id)
        .outerjoin(
            moves,
            and_(
                moves.c.branch_id == holds.c.branch_id, moves.c.publication == holds.c.publication
            ),
        )
        .where(or_(known.c.id.is_(None), moves.c.publication.is_(None)))
    )
    for branch, publication, name, _ in connection.execute(query.distinct()):
        if name is None:
            remedy = "Run `headgate cleanup`: it deletes the row."
            what = "it does not exist, and the catalog holds a build's result for it"
            yield Finding(what=what, where=f"branch {branch}", remedy=remedy)
        else:
            what = f"its reset {publication} of the branch is not in the log"
            yield _damage(what, f"a held result of branch {name}")


def check_versions(connection: Connection, *, deep: bool) -> Iterator[Finding]:
    """Check that versions of heads, views and tags are recorded and not condemned.

    With `deep`, check that the version of every transaction is recorded.
    """
    needed = union(
        select(branches.c.view_id), select(branches.c.head_id), select(tags.c.transaction_id)
    ).subquery()
    query = (
        select(transactions.c.id, transactions.c.version_id, versions.c.condemned_at)
        .outerjoin(versions, versions.c.id == transactions.c.version_id)
        .where(transactions.c.version_id.is_not(None))
    )
    missing = query.where(versions.c.id.is_(None))
    if not deep:
        missing = missing.where(transactions.c.id.in_(select(needed)))
    for id, version, _ in connection.execute(missing):
        yield _damage(f"its version {version} is not on record", f"transaction {id}")
    condemned = query.where(
        versions.c.condemned_at.is_not(None), transactions.c.id.in_(select(needed))
    )
    for id, version, _ in connection.execute(condemned):
        yield Finding(
            what=f"its version {version} is condemned, though a branch or tag needs it",
            where=f"transaction {id}",
            remedy="Run `headgate cleanup`: it spares what is needed again.",
        )


def list_shown(connection: Connection) -> list[Shown]:
    """Return every version that branches show, OPEN transactions hold or tags pin, each once."""
    places = union_all(
        select(branches.c.view_id.label("id"), branches.c.name.label("name")),
        select(branches.c.head_id, branches.c.name),
        select(tags.c.transaction_id, tags.c.name),
    ).subquery()
    query = (
        select(
            versions.c.location,
            datasets.c.kind,
            datasets.c.owned,
            *records.DATASET_NAME,
            func.min(places.c.name).label("place"),
        )
        .join(transactions, transactions.c.version_id == versions.c.id)
        .join(places, places.c.id == transactions.c.id)
        .join(datasets, datasets.c.id == versions.c.dataset_id)
        .group_by(
            versions.c.location,
            datasets.c.kind,
            datasets.c.owned,
            datasets.c.namespace,
            datasets.c.name,
        )
        .order_by(versions.c.location)
    )
    found: dict[str, Shown] = {}
    for row in connection.execute(query).mappings():
        shown = Shown(
            where=f"{records.dataset_name(row)}@{row['place']}",
            kind=DatasetKind(row["kind"]),
            owned=bool(row["owned"]),
            location=row["location"],
        )
        found.setdefault(shown.location, shown)
    return list(found.values())


# --- histories ------------------------------------------------------------------------------

# Limits of the partial check: branches, and steps of each branch.
_BRANCHES = 200
_STEPS = 25


class Place(NamedTuple):
    """The place of a transaction in a history, with its state and times."""

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

_COLUMNS = "id dataset_id parent_id depth jump_id state opened_at closed_at publication"
_PLACES = select(*(transactions.c[name] for name in _COLUMNS.split()))


def check_all_histories(connection: Connection) -> Iterator[Finding]:
    """Check every transaction, one dataset at a time."""
    query = _PLACES.order_by(transactions.c.dataset_id).execution_options(yield_per=PAGE_ROWS)
    rows = (Place._make(row) for row in connection.execute(query))
    for _, group in groupby(rows, key=itemgetter(1)):
        places = {place.id: place for place in group}
        for place in places.values():
            yield from _place_defects(place, places.get)


def check_some_histories(connection: Connection) -> Iterator[Finding]:
    """Check the newest steps of the newest branches."""
    heads = select(branches.c.head_id).where(branches.c.head_id.is_not(None))
    newest = heads.order_by(branches.c.created_at.desc()).limit(_BRANCHES)
    places = _PlaceCache(connection)
    layer = {TransactionId(id) for id in connection.execute(newest).scalars()}
    checked: set[TransactionId] = set()
    for _ in range(_STEPS):
        places.fetch_around(layer)
        for id in sorted(layer):
            place = places(id)
            # `check_branches` reports a head that does not exist.
            if place is not None:
                yield from _place_defects(place, places)
        checked |= layer
        parents = (place.parent for id in layer if (place := places(id)) is not None)
        layer = {parent for parent in parents if parent is not None} - checked


class _PlaceCache:
    """Cached lookup of places, one at a time; `fetch_around` loads many at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[TransactionId, Place | None] = {}

    def __call__(self, id: TransactionId) -> Place | None:
        if id not in self._known:
            self._fetch({id})
        return self._known[id]

    def fetch_around(self, ids: set[TransactionId]) -> None:
        """Fetch these, their parents, and two levels of skip pointers from the parents."""
        self._fetch(ids)
        layer = {place.parent for id in ids if (place := self._known[id]) and place.parent}
        for _ in range(3):
            self._fetch(layer)
            layer = {place.jump for id in layer if (place := self._known[id]) and place.jump}

    def _fetch(self, ids: set[TransactionId]) -> None:
        missing = ids - self._known.keys()
        self._known |= dict.fromkeys(missing)
        for row in records.rows_of(self._connection, _PLACES, missing, column=transactions.c.id):
            self._known[row.id] = Place._make(row)


def _place_defects(place: Place, find: Find) -> Iterator[Finding]:
    parent = find(place.parent) if place.parent is not None else None
    for what in (*_state_defects(place), *_parent_defects(place, parent, find)):
        yield _damage(what, f"transaction {place.id}")


def _state_defects(place: Place) -> Iterator[str]:
    is_open = place.state == TransactionState.OPEN
    if (place.closed_at is None) != is_open:
        yield f"it is {place.state}, but {'has' if is_open else 'has no'} time of closing"
    if (place.publication is not None) != (place.state == TransactionState.COMMITTED):
        named = "none" if place.publication is None else place.publication
        yield f"it is {place.state}, but its publication is {named}"
    if place.closed_at is not None and place.closed_at < place.opened_at:
        yield "it was closed before it was opened"


def _parent_defects(place: Place, parent: Place | None, find: Find) -> Iterator[str]:
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
