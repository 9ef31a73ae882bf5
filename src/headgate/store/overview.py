"""Summaries of a store for pages. Each method reads the catalog once, at one moment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from headgate.builds.attempt import job_key
from headgate.builds.plan import BuildOptions
from headgate.catalog import overview, records
from headgate.catalog.attempts import list_attempts
from headgate.catalog.builds import list_builds, load_build
from headgate.catalog.database import Connection
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.log import earlier_datasets, list_history
from headgate.catalog.resolve import check_context, check_exists, find_all_on_chain, find_shown
from headgate.errors import NotFound
from headgate.model import nouns
from headgate.model.contexts import BranchContext, parse_context
from headgate.model.graph import Mark, Node
from headgate.model.ids import BuildId
from headgate.model.jobspecs import PublishedJobSpec
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.store.documents import Json, build_json, jobspec_json
from headgate.store.transactions import StoreBase
from headgate.tables.metadata import Metadata
from headgate.tables.views import definition


@dataclass(frozen=True, kw_only=True)
class ShownDataset:
    """A dataset, its branches, and its view in one context."""

    dataset: nouns.Dataset
    branches: list[nouns.Branch]
    context: str
    # None if the context is a chain or a moment.
    branch: nouns.Branch | None
    view: nouns.Transaction | None
    # The OPEN transaction of the branch.
    opened: nouns.Transaction | None
    # Whether the primary branch has a JobSpec that produces it.
    blue: bool
    # The newest publication on the branch: that of the view, or a reset to it.
    last: nouns.LastMove | None


@dataclass(frozen=True)
class Overview:
    """Queries that summarize a store. Only an embedded store has them: a server draws the pages."""

    store: StoreBase

    def datasets(
        self, *, search: str = "", after: str = "", limit: int
    ) -> tuple[int, list[nouns.DatasetLine]]:
        """Return the number of datasets whose name contains a text, and a page of them, by name.

        :param after: name of the last dataset of one page, to read the next.
        """
        last = parse_dataset_name(after) if after else None
        primary = self.store.settings.builds.branch
        return self.store.database.read(
            lambda c: (
                overview.count_datasets(c, search),
                overview.list_dataset_lines(
                    c, primary=primary, search=search, after=last, limit=limit
                ),
            )
        )

    def branches(
        self, *, search: str = "", after: str = "", limit: int
    ) -> tuple[int, list[nouns.BranchNameLine]]:
        """Return the number of branch names that contain a text, and a page of them, by name.

        :param after: last branch name of one page, to read the next.
        """
        return self.store.database.read(
            lambda c: (
                overview.count_branch_names(c, search),
                overview.list_branch_names(c, search=search, after=after or None, limit=limit),
            )
        )

    def logic_names(self, *, after: str = "", limit: int) -> list[str]:
        """Return branch names with JobSpecs that no dataset has as a branch, in order."""
        return self.store.database.read(
            lambda c: overview.list_logic_names(c, after=after, limit=limit)
        )

    def find_branch(self, name: str) -> nouns.BranchNameLine | None:
        """Return the summary of a branch name over all datasets; None if no dataset has it.

        Raises `BranchNowhere` if it has no JobSpecs either.
        """

        def read(connection: Connection) -> nouns.BranchNameLine | None:
            check_exists(connection, [name])
            return overview.load_branch_name(connection, name)

        return self.store.database.read(read)

    def branch(
        self, name: str, *, after: str = "", limit: int
    ) -> tuple[nouns.BranchNameLine, list[nouns.DifferingDataset]]:
        """Return the summary of a branch name, and the datasets that differ from its parent.

        Raises `NotFound` if no dataset has the branch.

        :param after: name of the last dataset of one page, to read the next.
        """
        last = parse_dataset_name(after) if after else None

        def read(
            connection: Connection,
        ) -> tuple[nouns.BranchNameLine | None, list[nouns.DifferingDataset]]:
            check_exists(connection, [name])
            return (
                overview.load_branch_name(connection, name),
                overview.list_differing_datasets(connection, name, after=last, limit=limit),
            )

        line, found = self.store.database.read(read)
        if line is None:
            raise NotFound(f"no dataset has a branch {name!r}.", branch=name)
        return line, found

    def dataset(self, name: str, context: str = "") -> ShownDataset:
        """Return a dataset in a context: by default on the primary branch, or on its first one."""
        wanted, primary = parse_dataset_name(name), self.store.settings.builds.branch

        def read(connection: Connection) -> ShownDataset:
            dataset = records.load_dataset(connection, wanted)
            branches = records.list_branches(connection, dataset.id)
            known = {branch.name: branch for branch in branches}
            default = primary if primary in known else next(iter(known), primary)
            chosen = parse_context(context or default)
            if context:
                check_context(connection, chosen)
            if isinstance(chosen, BranchContext):
                # A failed build can leave a dataset without branches: that is not an error here.
                if known and not known.keys() & set(chosen.chain):
                    records.load_branch(connection, dataset, chosen.branch)
                first = known.get(chosen.branch)
                if first is not None and first.view is not None:
                    # A branch with a view does not use its fallbacks, and has a history.
                    chosen = BranchContext(chain=chosen.chain[:1])
            branch = known.get(str(chosen))
            head = branch.head if branch is not None and branch.is_open else None
            return ShownDataset(
                dataset=dataset,
                branches=branches,
                context=str(chosen),
                branch=branch,
                view=find_shown(connection, chosen, dataset),
                opened=records.find_transaction(connection, head) if head is not None else None,
                blue=bool(overview.datasets_built_on(connection, primary, [wanted])),
                last=overview.find_last_move(connection, branch.id) if branch else None,
            )

        return self.store.database.read(read)

    def places(self, names: Iterable[str]) -> dict[str, set[str] | None]:
        """Return the branches of those of the datasets that have a page.

        None: the dataset is only declared by a JobSpec, and its page needs no branch.
        """
        wanted = {parse_dataset_name(name) for name in names}

        def read(connection: Connection) -> dict[str, set[str] | None]:
            found: dict[str, set[str] | None] = {}
            for name in sorted(wanted):
                if any(not spec.removed for spec in load_jobspecs(connection, dataset=str(name))):
                    found[str(name)] = None
            for name, dataset in records.find_datasets(connection, wanted).items():
                branches = records.list_branches(connection, dataset.id)
                found[str(name)] = {branch.name for branch in branches}
            return found

        return self.store.database.read(read)

    def views(self, chain: Sequence[str]) -> dict[Node, list[Node]]:
        """Return the views that a chain shows, each with the datasets that its query reads."""

        def shown(
            connection: Connection, datasets: Iterable[nouns.Dataset]
        ) -> dict[DatasetName, tuple[Node, str]]:
            by_id = {dataset.id: dataset for dataset in datasets}
            found = find_all_on_chain(connection, chain, list(by_id))
            on = {by_id[id]: one.source for id, one in found.items() if one.source}
            versions = records.load_transactions(
                connection, [b.view for b in on.values() if b.view]
            )
            return {
                d.name: (
                    Node(dataset=d.name, branch=b.name, kind=d.kind, mark=Mark.GRAY),
                    v.location,
                )
                for d, b in on.items()
                if b.view and (v := versions[b.view].version) is not None
            }

        def read(connection: Connection) -> dict[Node, list[Node]]:
            views = shown(
                connection, records.list_datasets(connection, kind=nouns.DatasetKind.VIEW)
            )
            named = {
                node: list(_names_read(self.store.tables.read(location).metadata))
                for node, location in views.values()
            }
            every = {name for written in named.values() for names in written for name in names}
            known = shown(connection, records.find_datasets(connection, every).values())
            sources = {
                view: [next((known[n][0] for n in names if n in known), None) for names in written]
                for view, written in named.items()
            }
            return {view: [node for node in found if node] for view, found in sources.items()}

        return self.store.database.read(read)

    def history(
        self, branch: nouns.Branch, *, before: str = "", aborted: bool = False, limit: int
    ) -> list[nouns.Transaction]:
        """Return a page of the transactions of a branch, newest first.

        :param before: id of the transaction that the page starts at; the head by default.
        :param aborted: include the transactions that were aborted on this branch.
        """

        def read(connection: Connection) -> list[nouns.Transaction]:
            start = branch
            if before:
                first = records.load_transaction(connection, before)
                names = [branch.dataset_id, *earlier_datasets(connection, branch.dataset_id)]
                is_here = first.dataset_id in names
                start = replace(branch, head=first.id if is_here else None)
            return list_history(connection, start, aborted=aborted and not before, limit=limit)

        return self.store.database.read(read)

    def jobspecs(self, dataset: str) -> list[PublishedJobSpec]:
        """Return the JobSpec that each branch name has for a dataset, or its removal."""
        return self.store.database.read(lambda c: load_jobspecs(c, dataset=dataset))

    def jobspecs_on(self, branches: Sequence[str]) -> list[list[Json]]:
        """Return the documents of the JobSpecs on each of these branch names."""
        found = self.store.database.read(lambda c: [load_jobspecs(c, branch=b) for b in branches])
        return [[jobspec_json(spec) for spec in specs] for specs in found]

    def find_builds(self, search: str, *, limit: int) -> list[Json]:
        """Return the newest builds whose id, branch, actor and state contain all words."""
        found = self.store.database.read(lambda c: list_builds(c, limit=limit, search=search))
        return [build_json(build) for build in found]

    def attempts(self, build: str, position: int) -> list[nouns.Attempt]:
        """Return the attempts of one job of a build, newest first."""
        key = job_key(BuildId(build), position)
        return self.store.database.read(lambda c: list_attempts(c, key))

    def build_request(self, id: str) -> tuple[list[str], BuildOptions]:
        """Return the targets and options of a build, with which it can be started again."""
        found = self.store.database.read(lambda c: load_build(c, id))
        options: BuildOptions = {
            "branch": found.branch,
            "fallback": found.body["fallback"],
            "create": True,
            "upstream": found.body.get("upstream", False),
            "atomic": found.body.get("atomic", False),
            "parameters": found.body.get("parameters", {}),
        }
        return found.body["targets"], options


def _names_read(view: Metadata) -> Iterator[list[DatasetName]]:
    """Yield what each table that a view's queries name can mean, as an engine tries it."""
    if find_spec("sqlglot") is None:
        return
    from headgate.rows.script import names_read  # noqa: PLC0415  (an extra)

    found = definition(view)
    space = found["default-namespace"]
    for dialect, sql in found["queries"].items():
        for parts in names_read(sql, dialect):
            # The name as written, without the engine's name of the catalog, and in the namespace
            # of the session that made the view.
            tried = [parts, parts[1:], (*space, *parts)]
            yield [
                DatasetName(namespace=tuple(name[:-1]), name=name[-1])
                for name in tried
                if len(name) > 1
            ]
