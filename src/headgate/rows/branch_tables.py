"""The tables of a branch as a write reads them: each is read from the catalog once."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from headgate import errors
from headgate.catalog import records
from headgate.catalog.database import Connection, Database
from headgate.catalog.records import check_kept
from headgate.catalog.resolve import check_exists, find_all_on_chain
from headgate.catalog.transactions import find_protections
from headgate.model.changes import ReadView
from headgate.model.contexts import BranchContext, parse_context
from headgate.model.ids import BranchId, DatasetId, Instant, TransactionId, mint_dataset
from headgate.model.names import DatasetName, nearest
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction, Version


@dataclass(frozen=True, kw_only=True)
class BranchTable:
    """One dataset on a branch context."""

    dataset: Dataset
    # The branch of the context's own name.
    branch: Branch | None
    # The first branch of the chain with a view, and that view; for a table that is being renamed,
    # the view under its earlier name.
    source: Branch | None
    shown: Transaction | None

    @property
    def version(self) -> Version | None:
        return self.shown.version if self.shown else None

    @property
    def stored(self) -> Version:
        """The version of a table that the branch is known to show."""
        assert self.version is not None
        return self.version

    @property
    def is_new(self) -> bool:
        """True if the publication is to create the dataset."""
        return self.dataset.created_at == 0

    @property
    def renamed_from(self) -> TransactionId | None:
        """Return the transaction of the earlier name, if the table is being renamed."""
        if self.shown is None or self.shown.dataset_id == self.dataset.id:
            return None
        return self.shown.id

    @property
    def read(self) -> ReadView | None:
        """Return what a publication checks for a table that was only read."""
        return ReadView(branch=self.source.id, view=self.source.view) if self.source else None


def reads_of(
    tables: Iterable[BranchTable | None], moved: Collection[BranchId]
) -> tuple[ReadView, ...]:
    """Return the views of tables that were read and are not moved: a publication checks them."""
    found = (table.read for table in tables if table is not None)
    views = {read.branch: read for read in found if read is not None}
    return tuple(view for branch, view in views.items() if branch not in moved)


def check_unprotected(
    database: Database, branch: str, targets: Iterable[DatasetName], *, may_write_protected: bool
) -> None:
    """Raise early for a branch that is protected on these datasets; the door checks again."""
    if not may_write_protected:
        database.read(find_protections).check(branch, targets)


def branch_context(text: str) -> BranchContext:
    """Parse a branch, or a chain with read fallbacks; nothing else can be mutated."""
    context = parse_context(text)
    if not isinstance(context, BranchContext):
        raise errors.Invalid(
            f"{text!r} is not a branch: a publication changes one branch. Name a branch, or a "
            "chain such as 'feature>master'.",
            context=text,
        )
    return context


class BranchTables:
    """The tables of a branch context, each read from the catalog once."""

    def __init__(self, database: Database, context: BranchContext) -> None:
        self.database = database
        self.context = context
        self._tables: dict[DatasetName, BranchTable | None] = {}
        # Tables that the write is to create.
        self._created: set[DatasetName] = set()

    def prefetch(self, names: Iterable[DatasetName]) -> None:
        """Read the tables not read yet, all from one state of the catalog."""
        missing = {name for name in names if name not in self._tables}
        if missing:
            found = self.database.read(lambda c: _find_all(c, self.context, missing))
            self._tables |= {name: found.get(name) for name in missing}

    def find(self, name: DatasetName) -> BranchTable | None:
        """Return the dataset, or None if it does not exist."""
        self.prefetch([name])
        return self._tables[name]

    def rename(self, old: BranchTable, new: BranchTable) -> BranchTable:
        """Show the content of a table under a new name; a write there continues its history."""
        renamed = replace(new, shown=old.shown)
        self._tables[new.dataset.name] = renamed
        return renamed

    def create(self, name: DatasetName) -> BranchTable:
        """Return a table that the branch does not show, to be created by the write."""
        found = self.find(name)
        if found is not None:
            check_is_table(found)
        check_no_twin(self, name)
        self._tables[name] = made = found or new_table(name)
        self._created.add(name)
        return made

    def load(self, name: DatasetName, *, line: int = 0, column: int = 0) -> BranchTable:
        """Return the table, or raise an error with similar names."""
        found = self.find(name)
        if found is not None and name in self._created:
            return found
        if found is None or found.version is None:
            raise self.unknown(name, line, column)
        check_is_table(found, line=line)
        if found.shown is not None:
            check_kept(found.shown)
        return found

    def unknown(self, name: DatasetName, line: int = 0, column: int = 0) -> errors.HeadgateError:
        """Return the error of a table that the context lacks, with the nearest name."""
        datasets = self.database.read(records.list_datasets)
        names = [str(dataset.name) for dataset in datasets]
        # A name that exists on other branches is not a misspelling.
        near = [] if str(name) in names else nearest(str(name), names, n=3)
        context = str(self.context)
        if not line:
            return errors.TableNotFound(table=str(name), context=context, near=near)
        return errors.UnknownTable(
            table=str(name), context=context, near=near, line=line, column=column
        )


def new_table(name: DatasetName) -> BranchTable:
    """Return a table whose dataset the publication is to create."""
    dataset = Dataset(
        id=mint_dataset(), name=name, kind=DatasetKind.TABLE, owned=True, created_at=Instant(0)
    )
    return BranchTable(dataset=dataset, branch=None, source=None, shown=None)


def check_is_table(found: BranchTable, *, line: int = 0) -> None:
    """Raise for a tree of files or a view."""
    name = str(found.dataset.name)
    if found.dataset.kind is DatasetKind.VIEW:
        raise errors.ViewHasNoRows(view=name)
    if found.dataset.kind is not DatasetKind.TABLE:
        raise errors.Invalid(
            f"dataset {name} is a tree of files, not a table. Write it with `headgate files put`.",
            dataset=name,
            line=line,
        )


def check_no_twin(
    tables: BranchTables, name: DatasetName, *, old: DatasetName | None = None
) -> None:
    """Raise where a new table would be the root of a second history of one that exists.

    `old` is the name that the table had before.
    """
    context = tables.context
    for each in filter(None, (name, old)):
        found = tables.find(each)
        if found is None or found.branch is not None or found.source is not None:
            continue
        others = tables.database.read(partial(_shown_on, dataset=found.dataset.id))
        if others:
            raise errors.ImpossibleSchemaChange(
                dataset=str(name),
                reason=f"{each} is not on {str(context)!r} but on {', '.join(others)}: a new "
                "table would have no history in common with it, and could not be merged",
                remedy=f"Name a fallback, as in -b '{context}>{others[0]}', or create the "
                f"branch first: headgate branch create {each} {context.branch} --from "
                f"{others[0]} (with --root in place of --from: unrelated, and empty).",
            )


def _shown_on(connection: Connection, dataset: DatasetId) -> list[str]:
    """Return the branches that show a version and that the caller may read, roots first."""
    policy = records.policy_of(connection)
    on = [
        branch
        for branch in sorted(
            records.list_branches(connection, dataset), key=lambda b: b.parent is not None
        )
        if branch.view is not None and (policy is None or policy.shows_branch(branch.name))
    ]
    views = records.load_transactions(connection, [b.view for b in on if b.view])
    return [b.name for b in on if b.view and views[b.view].version is not None]


def _find_all(
    connection: Connection, context: BranchContext, names: Iterable[DatasetName]
) -> dict[DatasetName, BranchTable]:
    """Return what the context shows of these datasets; those that do not exist are left out."""
    datasets = records.find_datasets(connection, names)
    found = find_all_on_chain(connection, context.chain, [d.id for d in datasets.values()])
    if all(on.own is None and on.source is None for on in found.values()):
        check_exists(connection, context.chain)
    sources = [on.source for on in found.values() if on.source is not None]
    views = records.load_transactions(connection, [b.view for b in sources if b.view is not None])
    tables: dict[DatasetName, BranchTable] = {}
    for name, dataset in datasets.items():
        on = found[dataset.id]
        shown = views[on.source.view] if on.source and on.source.view else None
        tables[name] = BranchTable(dataset=dataset, branch=on.own, source=on.source, shown=shown)
    return tables
