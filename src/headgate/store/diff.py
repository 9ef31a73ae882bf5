"""Differences between two versions of a dataset: the document of `headgate diff`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headgate.catalog import records, resolve
from headgate.catalog.database import Connection
from headgate.catalog.log import earlier_datasets
from headgate.catalog.merge_base import find_earlier
from headgate.errors import NotInHistory, TransactionNotCommitted
from headgate.files.edits import root_of
from headgate.files.tree import Change, FilesDifference, summarize_changes
from headgate.model.contexts import BranchContext, Context, parse_context
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Dataset, DatasetKind, Transaction, TransactionState, Version
from headgate.model.rules import rules_note
from headgate.rows.branch_tables import BranchTables
from headgate.rows.outcome import Parts
from headgate.store.documents import Json, file_json
from headgate.tables import diff
from headgate.tables.inspect import recorded_row_count, show_rows

if TYPE_CHECKING:
    from headgate.rows.evaluator_pool import EvaluatorPool, Task
    from headgate.rows.merge import Side
    from headgate.rows.working_set import WorkingSet
    from headgate.store.transactions import StoreBase
    from headgate.tables.versions import StoredVersion


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The transactions of one dataset that are compared; None is an empty version."""

    dataset: Dataset
    before: Transaction | None
    after: Transaction | None

    @property
    def versions(self) -> tuple[Version | None, Version | None]:
        before, after = self.before, self.after
        return before.version if before else None, after.version if after else None

    @property
    def renamed_from(self) -> str | None:
        """Return the name on the first side, if it is another one."""
        before = self.before.dataset if self.before else self.dataset.name
        return None if before == self.dataset.name else str(before)

    @property
    def same_content(self) -> bool:
        one, other = self.versions
        return (one and one.content_id) == (other and other.content_id)


def load_sides(store: StoreBase, dataset: DatasetName, before: str, after: str) -> Sides:
    """Return the transactions of a dataset that two branches, contexts or ids refer to."""

    def read(connection: Connection) -> Sides:
        found = records.load_dataset(connection, dataset)
        return Sides(
            dataset=found,
            before=_load_side(connection, found, before, other=after),
            after=_load_side(connection, found, after, other=before),
        )

    return store.database.read(read)


def find_dataset_of(store: StoreBase, texts: Sequence[str]) -> DatasetName | None:
    """Return the dataset of the first text that is a transaction id; None if no text is one."""

    def read(connection: Connection) -> DatasetName | None:
        found = (records.find_transaction(connection, text) for text in texts)
        return next((transaction.dataset for transaction in found if transaction), None)

    return store.database.read(read)


def list_differing(store: StoreBase, before: str, after: str) -> list[Sides]:
    """Return every dataset whose content differs between two contexts.

    A branch alone means the branch and its fallbacks, as in a build: a dataset without that branch
    has no changes on it.
    """

    def read(connection: Connection) -> list[Sides]:
        named = [resolve.read_context(connection, text) for text in (before, after)]
        chains = [_with_fallback(store, context) for context in named]
        found = _list_candidates(connection, *chains)
        olds, news = (resolve.find_all_shown(connection, context, found) for context in chains)
        for shown in (*olds.values(), *news.values()):
            records.check_kept(shown)
        sides = [Sides(dataset=d, before=olds.get(d.id), after=news.get(d.id)) for d in found]
        return _join_renamed(connection, [one for one in sides if not one.same_content])

    return store.database.read(read)


def _list_candidates(connection: Connection, before: Context, after: Context) -> list[Dataset]:
    """Return the datasets that two contexts may show differently, by name."""
    if isinstance(before, BranchContext) and isinstance(after, BranchContext):
        shared = set(before.chain) & set(after.chain)
        orders = ([name for name in on.chain if name in shared] for on in (before, after))
        if len({*map(tuple, orders)}) == 1:
            only = {*before.chain, *after.chain} - shared
            names = {branch.dataset for branch in records.branches_named(connection, only)}
            return [found for _, found in sorted(records.find_datasets(connection, names).items())]
    return records.list_datasets(connection)


def _join_renamed(connection: Connection, differing: Sequence[Sides]) -> list[Sides]:
    """Return the sides with those of an old and a new name as one, under the name after."""
    only = {one.dataset.id: one for one in differing if None in one.versions}
    joined = dict.fromkeys(only, False)
    pairs: dict[DatasetId, Sides] = {}
    for one in only.values():
        shown = one.after if one.versions[1] is not None else one.before
        for last in find_earlier(connection, shown) if shown is not None else ():
            other = only.get(last.dataset_id)
            if other is None or (one.versions[0] is None) == (other.versions[0] is None):
                continue
            old, new = (other, one) if one.versions[0] is None else (one, other)
            pairs[new.dataset.id] = Sides(dataset=new.dataset, before=old.before, after=new.after)
            joined[old.dataset.id] = True
            break
    left = (one for one in differing if not joined.get(one.dataset.id))
    return [pairs.get(one.dataset.id, one) for one in left]


def _load_side(
    connection: Connection, dataset: Dataset, text: str, *, other: str
) -> Transaction | None:
    transaction = records.find_transaction(connection, text)
    if transaction is None:
        context = parse_context(text)
        if isinstance(context, BranchContext) and resolve.find_tagged(
            connection, text, [dataset.id]
        ):
            context = resolve.read_context(connection, text)
        earlier = _find_earlier_side(connection, context, dataset, other)
        return earlier or resolve.load_shown(connection, context, dataset)
    if transaction.dataset_id not in (dataset.id, *earlier_datasets(connection, dataset.id)):
        raise NotInHistory(
            dataset=str(dataset.name), branch=transaction.branch, transaction=transaction.id
        )
    if transaction.state is TransactionState.ABORTED:
        raise TransactionNotCommitted(transaction=transaction.id, state=transaction.state)
    records.check_kept(transaction)
    return transaction


def _find_earlier_side(
    connection: Connection, context: Context, dataset: Dataset, other: str
) -> Transaction | None:
    """Return what a context shows under an earlier name of what the other side shows."""
    if resolve.find_shown(connection, context, dataset) is not None:
        return None
    shown = records.find_transaction(connection, other) or resolve.find_shown(
        connection, parse_context(other), dataset
    )
    for last in find_earlier(connection, shown) if shown is not None else ():
        found = resolve.find_shown(
            connection, context, records.load_dataset(connection, last.dataset)
        )
        if found is not None and found.version is not None:
            return found
    return None


def _with_fallback(store: StoreBase, context: Context) -> Context:
    if not isinstance(context, BranchContext) or context.fallbacks:
        return context
    others = store.settings.builds.fallback_of(context.branch)
    return BranchContext(chain=(context.branch, *others))


def compare_sides(
    store: StoreBase, sides: Sides, how: diff.DiffOptions
) -> diff.TableDifference | FilesDifference:
    """Compare the versions of two sides."""
    if sides.dataset.kind is DatasetKind.FILES:
        return _compare_files(store, sides, how.samples)
    read = store.contents.tables.read
    before, after = (read(v.location) if v else None for v in sides.versions)
    if sides.dataset.kind is DatasetKind.VIEW:
        return diff.compare_views(before, after)
    if store.evaluators is None or sides.same_content or not how.reads_files:
        return diff.compare_tables(before, after, how, same_content=sides.same_content)
    task = partial(
        _compare_apart,
        places=[v.location if v else None for v in sides.versions],
        how=replace(how, options={}),
    )
    shown = sides.after or sides.before
    assert shown is not None, "two versions that do not exist have the same content"
    found = diff.read_difference(_perform(store, store.evaluators, shown.branch, task))
    assert found is not None
    return found


def _perform(store: StoreBase, evaluators: EvaluatorPool, branch: str, task: Task) -> Json:
    """Read rows in another process, which has the same credentials of the storage."""
    parts = Parts(
        database=store.database,
        versions=store.contents.tables,
        trees=store.trees,
        options=store.settings.environ,
    )
    tables = BranchTables(store.database, BranchContext(chain=(branch,)))
    return evaluators.perform(parts, tables, task, store.interrupt)


def read_shown(store: StoreBase, branch: str, version: StoredVersion, *, limit: int) -> Json:
    """Return the number of rows of a version and the first of them; a server reads them apart."""
    is_recorded = limit == 0 and recorded_row_count(version.metadata) is not None
    if store.evaluators is None or is_recorded:
        return show_rows(version, limit=limit, options=store.settings.environ)
    task = partial(_show_apart, location=version.location, limit=limit)
    return _perform(store, store.evaluators, branch, task)


def _show_apart(working: WorkingSet, *, location: str, limit: int) -> Json:
    version = working.versions.read(location)
    return show_rows(version, limit=limit, options=working.options)


def _compare_apart(
    working: WorkingSet, *, places: Sequence[str | None], how: diff.DiffOptions
) -> Json:
    """Compare two versions in an evaluator."""
    before, after = (working.versions.read(at) if at else None for at in places)
    return asdict(diff.compare_tables(before, after, replace(how, options=working.options)))


def _compare_files(store: StoreBase, sides: Sides, samples: int) -> FilesDifference:
    before, after = (root_of(version) for version in sides.versions)
    return summarize_changes(
        store.trees.difference(before, after),
        before_count=store.trees.measure(before).entries,
        after_count=store.trees.measure(after).entries,
        samples=samples,
    )


Difference = diff.TableDifference | FilesDifference


def find_differences(
    store: StoreBase,
    dataset: str | None,
    before: str,
    after: str,
    *,
    rows: int,
    key: tuple[str, ...],
    on_large: Callable[[int, int], None],
) -> Json | list[Json]:
    """Return the difference of one dataset, or a list for every dataset that differs.

    The list comes from metadata alone; no data files are read.
    """
    options = store.settings.environ
    name = parse_dataset_name(dataset) if dataset else find_dataset_of(store, (before, after))
    if name is None:
        how = diff.DiffOptions(options=options, samples=0, reads_files=False)
        return [
            difference_json(sides, compare_sides(store, sides, how))
            for sides in list_differing(store, before, after)
        ]
    sides = load_sides(store, name, before, after)
    how = diff.DiffOptions(options=options, key=key, samples=rows, on_large=on_large)
    return difference_json(sides, compare_sides(store, sides, how))


def difference_json(sides: Sides, found: Difference) -> Json:
    """Return the document that `headgate diff --help` describes."""
    head: Json = {
        "dataset": str(sides.dataset.name),
        "renamed_from": sides.renamed_from,
        "kind": sides.dataset.kind.value,
        "from": sides.before.id if sides.before else None,
        "to": sides.after.id if sides.after else None,
    }
    if sides.after is not None and (note := rules_note(sides.after.provenance)):
        head["rules"] = note
    body = _table_json(found) if isinstance(found, diff.TableDifference) else _files_json(found)
    return head | body


def review_json(side: Side) -> Json:
    """Return the document of one dataset of a merge that `headgate diff BRANCH` describes."""
    dataset = side.on_branch.dataset
    found = side.difference
    if found is None and dataset.kind is DatasetKind.FILES:
        found = summarize_changes((), before_count=0, after_count=0, samples=0)
    elif found is None:
        found = diff.compare_tables(None, None, diff.DiffOptions(options={}))
    sides = Sides(dataset=dataset, before=side.base, after=side.source)
    return difference_json(sides, found) | {
        "into": side.target.id if side.target else None,
        "identical": False,
        "conflicts": side.conflicts,
    }


def _table_json(found: diff.TableDifference) -> Json:
    rows = found.rows
    return {
        "identical": found.is_identical,
        "schema": _schema_json(found.schema),
        "counts": {
            "from": found.before_count,
            "to": found.after_count,
            "added": None if rows is None else rows.added,
            "removed": None if rows is None else rows.removed,
            "changed": None if rows is None else rows.changed,
        },
        "samples": {
            "added": rows.added_rows if rows else [],
            "removed": rows.removed_rows if rows else [],
            "changed": [
                {"key": changed.key, "from": changed.before, "to": changed.after}
                for changed in (rows.changed_rows if rows else ())
            ],
        },
        "key": list(found.key),
        "basis": found.basis.value,
    }


def _schema_json(changes: diff.SchemaChanges) -> Json:
    def field(found: diff.Field) -> Json:
        return {"name": found.path, "type": found.type, "required": found.required}

    return {
        "added": [field(found) for found in changes.added],
        "removed": [field(found) for found in changes.removed],
        "renamed": [{"from": old.path, "to": new.path} for old, new in changes.renamed],
        "retyped": [
            {"name": new.path, "from": old.type, "to": new.type} for old, new in changes.retyped
        ],
        "required": [
            {"name": new.path, "from": old.required, "to": new.required}
            for old, new in changes.required
        ],
    }


def _files_json(found: FilesDifference) -> Json:
    return {
        "identical": not any(found.counts.values()),
        "schema": {},
        "counts": {
            "from": found.before_count,
            "to": found.after_count,
            **{kind.value: count for kind, count in found.counts.items()},
        },
        "samples": {
            kind.value: [_change_json(change) for change in changes]
            for kind, changes in found.samples.items()
        },
        "key": ["path"],
        "basis": "files",
    }


def _change_json(change: Change) -> Json:
    before = file_json(change.before) if change.before else None
    after = file_json(change.after) if change.after else None
    if before and after:
        return {"path": after["path"], "from": before, "to": after}
    return before or after or {}
