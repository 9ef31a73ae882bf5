"""Verbs that read the store as a whole: lists of nouns, and records as JSON documents."""

from collections.abc import Callable, Sequence

from headgate.catalog.branches import list_protected
from headgate.catalog.builds import list_builds, load_build
from headgate.catalog.database import Connection
from headgate.catalog.datasets import list_tags
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.log import list_events, list_publications, list_recoveries, load_publication
from headgate.catalog.operations import find_operations
from headgate.catalog.records import find_unit, list_branches, list_datasets, load_dataset
from headgate.catalog.resolve import check_exists
from headgate.catalog.tokens import list_tokens
from headgate.errors import BranchNowhere, Invalid, NotFound
from headgate.model.access import Protections
from headgate.model.ids import DatasetId
from headgate.model.names import check_limit, parse_dataset_name, parse_member
from headgate.model.nouns import Branch, Dataset, Publication, PublicationKind, Tag
from headgate.store import documents
from headgate.store.diff import find_differences
from headgate.store.transactions import StoreBase, TransactionHandle, UnitHandle

_NOWHERE = "Nothing was committed there."
_LIST = "`headgate branch list` lists the branches."


def single_operation(
    key: str, found: Sequence[documents.Json], *, hint: str = ""
) -> documents.Json:
    """Return the one operation that has an idempotency key.

    Raises `NotFound` if none was committed, and `Invalid` if the key is ambiguous.
    """
    if not found:
        raise NotFound(
            f"nothing was committed under the key {key!r}: it never began, was refused, or is "
            f"over 30 days old.{hint}",
            key=key,
            operation=None,
            state="not_committed",
            publication=None,
        )
    if len(found) > 1:
        raise Invalid(
            f"{len(found)} operations have the key {key!r}: name the branch and kind of one.",
            key=key,
            operations=list(found),
        )
    return found[0]


def no_progress(rows: int, parts: int) -> None:
    """No progress callback."""


class StoreQueries(StoreBase):
    """Verbs that read the store as a whole and change nothing."""

    def datasets(self, *, limit: int | None = None, after: str | None = None) -> list[Dataset]:
        """Return the datasets of the store by name.

        :param limit: maximum number of datasets; all by default.
        :param after: name of the last dataset of one page, to read the next.
        """
        check_limit(limit)
        last = parse_dataset_name(after) if after is not None else None
        return self.database.read(lambda c: list_datasets(c, after=last, limit=limit))

    def branches(
        self, dataset: str | None = None, *, limit: int | None = None, after: str | None = None
    ) -> list[Branch]:
        """Return the branches of one dataset, or of all datasets, by dataset and name.

        :param limit: maximum number of branches; all by default.
        :param after: `DATASET@BRANCH` of the last branch of one page, to read the next.
        """
        check_limit(limit)
        # The name of a branch has no @; that of a dataset may.
        where, _, name = (after or "").rpartition("@")
        last = (parse_dataset_name(where), name) if after is not None else None
        return self.database.read(
            lambda c: list_branches(c, _id(c, dataset), after=last, limit=limit)
        )

    def protected(self) -> Protections:
        """Return the protected branch names, each with the patterns of its protected datasets.

        A protected branch accepts only admins and builds of clean commits.
        """
        return self.database.read(list_protected)

    def tags(self, dataset: str | None = None) -> list[Tag]:
        """Return the tags of one dataset, or of all datasets."""
        return self.database.read(lambda c: list_tags(c, _find(c, dataset)))

    def publications(
        self,
        *,
        actor: str | None = None,
        dataset: str | None = None,
        branch: str | None = None,
        kind: PublicationKind | str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[Publication]:
        """Return publications from the log, newest first.

        :param actor: only publications of this actor.
        :param dataset: only publications that moved this dataset.
        :param branch: only publications that moved a branch of this name.
        :param kind: only publications of this kind.
        :param limit: maximum number of publications.
        :param before: only publications with a smaller number; pass the last number of one page to
            read the next.
        """
        check_limit(limit)
        wanted = parse_member(PublicationKind, kind, what="kind of publication") if kind else None

        def read(connection: Connection) -> list[Publication]:
            found = list_publications(
                connection,
                actor=actor,
                dataset=_id(connection, dataset),
                branch=branch,
                kind=wanted,
                limit=limit,
                before=before,
            )
            if branch and not found:
                check_exists(connection, [branch], past=True, remedy=_LIST)
            return found

        return self.database.read(read)

    def publication(self, number: int) -> Publication:
        """Return a publication by its number, or raise `NotFound`."""
        return self.database.read(lambda c: load_publication(c, number))

    def events(
        self,
        *,
        actor: str | None = None,
        dataset: str | None = None,
        branch: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        skip: int = 0,
    ) -> list[documents.Json]:
        """Return events that are not publications, newest first.

        :param limit: maximum number of events.
        :param skip: number of newest events to leave out.
        """
        check_limit(limit, skip)
        found = self.database.read(
            lambda c: list_events(
                c,
                actor=actor,
                dataset=_id(c, dataset),
                branch=branch,
                kind=kind,
                limit=limit,
                skip=skip,
            )
        )
        if branch and not found:
            self.database.read(lambda c: check_exists(c, [branch], past=True, remedy=_LIST))
        return [documents.event_json(event) for event in found]

    def recoveries(
        self, *, actor: str | None = None, kind: str | None = None, limit: int = 50, skip: int = 0
    ) -> list[documents.Json]:
        """Return the audit log of recovery, newest first.

        :param actor: only entries about the work of this actor.
        :param kind: only entries of this kind.
        :param limit: maximum number of entries.
        :param skip: number of newest entries to leave out.
        """
        check_limit(limit, skip)
        found = self.database.read(
            lambda c: list_recoveries(c, actor=actor, kind=kind, limit=limit, skip=skip)
        )
        return [documents.audit_json(row) for row in found]

    def status(
        self, key: str, *, branch: str | None = None, kind: str | None = None
    ) -> documents.Json:
        """Return the operation that has an idempotency key, with its state.

        The state is `committed`, `in_progress` or `not_committed`. Raises `NotFound` if the catalog
        has no operation with the key, and `Invalid` if it has several.

        :param branch: only operations on this branch.
        :param kind: only operations of this kind.
        """
        found = self.database.read(lambda c: find_operations(c, key, branch=branch, kind=kind))
        hint = ""
        if branch and not found:
            # A client that lost a reply asks for the state, also of the creation of a branch.
            try:
                self.database.read(lambda c: check_exists(c, [branch], past=True, remedy=_NOWHERE))
            except BranchNowhere as unknown:
                hint = f" {unknown.message[0].upper()}{unknown.message[1:]}"
        return single_operation(key, found, hint=hint)

    def opened(self, id: str) -> TransactionHandle | UnitHandle:
        """Return the handle of a unit or transaction, in any state, by its id."""
        if self.database.read(lambda c: find_unit(c, id)) is not None:
            return UnitHandle.load(self, id)
        return TransactionHandle.load(self, id)

    def jobspecs(
        self,
        *,
        branch: str | None = None,
        dataset: str | None = None,
        repository: str | None = None,
        commit: str | None = None,
    ) -> list[documents.Json]:
        """Return the published JobSpecs, and the marks of removed ones.

        :param branch: only those published on this branch name.
        :param dataset: only those that make this dataset.
        :param repository: only those of this repository or project.
        :param commit: only those of this Git commit. Without a branch and a dataset, the list has
            JobSpecs that were replaced since, too.
        """
        found = self.database.read(
            lambda c: load_jobspecs(
                c, branch=branch, dataset=dataset, repository=repository, commit=commit
            )
        )
        if branch and not found:
            self.database.read(lambda c: check_exists(c, [branch], remedy=_LIST))
        return [documents.jobspec_json(spec) for spec in found]

    def builds(self, *, limit: int = 50, after: str | None = None) -> list[documents.Json]:
        """Return builds without their jobs, newest first.

        :param limit: maximum number of builds.
        :param after: id of the last build of one page, to read the next.
        """
        check_limit(limit)
        found = self.database.read(lambda c: list_builds(c, limit=limit, after=after))
        return [documents.build_json(build) for build in found]

    def build_record(self, id: str) -> documents.Json:
        """Return a build with the state of each of its jobs."""
        build = self.database.read(lambda c: load_build(c, id))
        return documents.build_json(build) | {"jobs": [dict(job.body) for job in build.jobs]}

    def differences(
        self,
        before: str,
        after: str,
        *,
        dataset: str | None = None,
        rows: int = 5,
        key: Sequence[str] = (),
        on_large: Callable[[int, int], None] = no_progress,
    ) -> documents.Json | list[documents.Json]:
        """Return the changes that lead from one version to another.

        With a dataset, or with a transaction id, the result is the document of `headgate diff`.
        Otherwise it is a list with a document for every dataset that differs, computed from
        metadata alone.

        :param before: branch, context or transaction id.
        :param after: branch, context or transaction id.
        :param dataset: dataset to compare.
        :param rows: maximum number of sample rows or paths of each kind of change.
        :param key: columns that identify a row; the identifier columns of the table by default.
        :param on_large: called before a large comparison, with the number of rows and of parts on
            disk.
        """
        return find_differences(
            self, dataset, before, after, rows=rows, key=tuple(key), on_large=on_large
        )

    def tokens(self) -> list[documents.Json]:
        """Return the actor, rights and times of all tokens; never the tokens themselves."""
        return [documents.TOKEN.json(record) for record in self.database.read(list_tokens)]


def _find(connection: Connection, dataset: str | None) -> Dataset | None:
    return load_dataset(connection, parse_dataset_name(dataset)) if dataset else None


def _id(connection: Connection, dataset: str | None) -> DatasetId | None:
    found = _find(connection, dataset)
    return found.id if found else None
