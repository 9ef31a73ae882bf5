"""Verbs that look at a store as a whole and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.catalog.branches import list_protected
from headgate.catalog.builds import list_builds, load_build
from headgate.catalog.database import Connection
from headgate.catalog.datasets import list_tags
from headgate.catalog.find import list_branches, list_datasets, load_dataset
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.log import list_events, list_publications, load_publication
from headgate.catalog.operations import find_operations
from headgate.catalog.tokens import list_tokens
from headgate.errors import NotFound
from headgate.handles.differences import find_differences
from headgate.handles.documents import build_json, build_with_jobs_json, jobspec_json, token_json
from headgate.handles.nouns import Json, event_json
from headgate.handles.operations import only_operation
from headgate.handles.parts import Verbs
from headgate.handles.transactions import TransactionHandle, UnitHandle, load_opened
from headgate.model.ids import DatasetId
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import Branch, Dataset, Publication, PublicationKind, Tag
from headgate.model.options import check_limit, member


def _say_nothing(rows: int, parts: int) -> None:
    """Nobody is told how large a comparison is."""


class Looking(Verbs):
    """Lists of nouns, and records as documents."""

    def datasets(self) -> list[Dataset]:
        return self.database.read(list_datasets)

    def branches(self, dataset: str | None = None) -> list[Branch]:
        """Of one dataset, or of all."""
        return self.database.read(lambda c: list_branches(c, _id(c, dataset)))

    def protected(self) -> list[str]:
        """Branch names that accept only builds of clean commits and admins."""
        return self.database.read(list_protected)

    def tags(self, dataset: str | None = None) -> list[Tag]:
        def read(connection: Connection) -> list[Tag]:
            wanted = load_dataset(connection, parse_dataset_name(dataset)) if dataset else None
            return list_tags(connection, wanted)

        return self.database.read(read)

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
        """Newest first; `before` goes on where an earlier list ended."""
        check_limit(limit)
        wanted = member(PublicationKind, kind, what="kind of publication") if kind else None
        return self.database.read(
            lambda c: list_publications(
                c,
                actor=actor,
                dataset=_id(c, dataset),
                branch=branch,
                kind=wanted,
                limit=limit,
                before=before,
            )
        )

    def publication(self, number: int) -> Publication:
        found = self.database.read(lambda c: load_publication(c, number))
        if found is None:
            raise NotFound(f"there is no publication {number}.", publication=number)
        return found

    def events(
        self,
        *,
        actor: str | None = None,
        dataset: str | None = None,
        branch: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        skip: int = 0,
    ) -> list[Json]:
        """What was recorded and is no publication, newest first."""
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
        return [event_json(event) for event in found]

    def status(self, key: str, *, branch: str | None = None, kind: str | None = None) -> Json:
        """What became of the operation with an idempotency key: committed, in progress, or not."""
        found = self.database.read(lambda c: find_operations(c, key, branch=branch, kind=kind))
        return only_operation(key, found)

    def opened(self, id: str) -> TransactionHandle | UnitHandle:
        """What an id stands for, in any state: a unit, or a transaction."""
        return load_opened(self, id)

    def jobspecs(self, *, branch: str | None = None, dataset: str | None = None) -> list[Json]:
        found = self.database.read(lambda c: load_jobspecs(c, branch=branch, dataset=dataset))
        return [jobspec_json(spec) for spec in found]

    def builds(self, *, limit: int = 50, after: str | None = None) -> list[Json]:
        """Newest first; `after` goes on where an earlier list ended."""
        check_limit(limit)
        found = self.database.read(lambda c: list_builds(c, limit=limit, after=after))
        return [build_json(build) for build in found]

    def build_record(self, id: str) -> Json:
        """A build and how each of its jobs is doing."""
        return build_with_jobs_json(self.database.read(lambda c: load_build(c, id)))

    def differences(
        self,
        before: str,
        after: str,
        *,
        dataset: str | None = None,
        rows: int = 5,
        key: Sequence[str] = (),
        on_large: Callable[[int, int], None] = _say_nothing,
    ) -> Json | list[Json]:
        """What leads from one branch, context or transaction to another; of all: a list."""
        return find_differences(
            self, dataset, before, after, rows=rows, key=tuple(key), on_large=on_large
        )

    def tokens(self) -> list[Json]:
        """Tokens and what they stand for; never the tokens themselves."""
        return [token_json(record) for record in self.database.read(list_tokens)]


def _id(connection: Connection, dataset: str | None) -> DatasetId | None:
    return load_dataset(connection, parse_dataset_name(dataset)).id if dataset else None
