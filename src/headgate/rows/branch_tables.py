"""What a mutation stands on: the tables of a branch as it shows them, each looked at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.catalog.branches import list_protected
from headgate.catalog.database import Connection, Database
from headgate.catalog.records import branches_named, find_datasets, list_datasets, load_transactions
from headgate.errors import (
    BranchNowhere,
    BranchProtected,
    HeadgateError,
    Invalid,
    TableNotFound,
    UnknownTable,
    VersionExpired,
)
from headgate.model.changes import ReadView
from headgate.model.contexts import BranchContext, parse_context
from headgate.model.ids import DatasetId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction, Version


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One dataset: its branch of the context's own name, and where the context finds a view."""

    dataset: Dataset
    branch: Branch | None
    source: Branch | None
    shown: Transaction | None

    @property
    def version(self) -> Version | None:
        return self.shown.version if self.shown else None

    @property
    def read(self) -> ReadView | None:
        """What must still hold of a table that was only looked at."""
        return ReadView(branch=self.source.id, view=self.source.view) if self.source else None


def check_unprotected(database: Database, branch: str, *, may_write_protected: bool) -> None:
    """Says at once what the door would say in the end; the door decides."""
    if not may_write_protected and branch in database.read(list_protected):
        raise BranchProtected(branch=branch)


def branch_context(text: str) -> BranchContext:
    """A branch, or one with read fallbacks; nothing else can be mutated."""
    context = parse_context(text)
    if not isinstance(context, BranchContext):
        raise Invalid(
            f"{text!r} is no branch: a mutation is a publication of its own. Name a branch, or a "
            "chain such as 'feature>master'.",
            context=text,
        )
    return context


class Ground:
    """The tables of a branch context, each read from the catalog once."""

    def __init__(self, database: Database, context: BranchContext) -> None:
        self.database = database
        self.context = context
        self._standings: dict[DatasetName, Standing | None] = {}

    def look(self, names: Iterable[DatasetName]) -> None:
        """Reads those not looked at yet, all in one picture of the catalog."""
        missing = {name for name in names if name not in self._standings}
        if missing:
            found = self.database.read(lambda c: stand(c, self.context, missing))
            self._standings |= {name: found.get(name) for name in missing}

    def find(self, name: DatasetName) -> Standing | None:
        self.look([name])
        return self._standings[name]

    def load(self, name: DatasetName, *, line: int = 0, column: int = 0) -> Standing:
        """The table, or an error with the name that was probably meant."""
        found = self.find(name)
        if found is None or found.version is None:
            raise self._unknown(name, line, column)
        if found.dataset.kind is not DatasetKind.TABLE:
            raise Invalid(
                f"dataset {name} is a tree of files, not a table.", dataset=str(name), line=line
            )
        if found.shown is not None and found.shown.condemned:
            raise VersionExpired(what=f"transaction {found.shown.id}")
        return found

    def _unknown(self, name: DatasetName, line: int, column: int) -> HeadgateError:
        datasets = self.database.read(list_datasets)
        if datasets and not self._has_branch([dataset.id for dataset in datasets]):
            return BranchNowhere(
                branch=self.context.branch,
                remedy=f"To make it off another, write it as '{self.context.branch}>FALLBACK'.",
            )
        names = [str(dataset.name) for dataset in datasets]
        # One that is there on other branches was meant, and not some other.
        known = {} if str(name) in names else {one.lower(): one for one in names}
        near = [known[one] for one in difflib.get_close_matches(str(name).lower(), known, n=3)]
        context = str(self.context)
        if not line:
            return TableNotFound(table=str(name), context=context, near=near)
        return UnknownTable(table=str(name), context=context, near=near, line=line, column=column)

    def _has_branch(self, datasets: Sequence[DatasetId]) -> bool:
        chain = self.context.chain
        return bool(self.database.read(lambda c: branches_named(c, chain, datasets)))


def stand(
    connection: Connection, context: BranchContext, names: Iterable[DatasetName]
) -> dict[DatasetName, Standing]:
    """What the context shows of these datasets; those that do not exist are left out."""
    datasets = find_datasets(connection, names)
    on = branches_named(connection, context.chain, [d.id for d in datasets.values()])
    by_dataset: dict[DatasetName, dict[str, Branch]] = {}
    for branch in on:
        by_dataset.setdefault(branch.dataset, {})[branch.name] = branch
    sources = {
        name: next((b for at in context.chain if (b := known.get(at)) and b.view is not None), None)
        for name, known in by_dataset.items()
    }
    views = load_transactions(connection, [b.view for b in sources.values() if b and b.view])
    return {
        name: _standing(dataset, by_dataset.get(name, {}), context, sources.get(name), views)
        for name, dataset in datasets.items()
    }


def _standing(
    dataset: Dataset,
    known: dict[str, Branch],
    context: BranchContext,
    source: Branch | None,
    views: dict[TransactionId, Transaction],
) -> Standing:
    shown = views.get(source.view) if source and source.view else None
    return Standing(dataset=dataset, branch=known.get(context.branch), source=source, shown=shown)
