"""A dataset as a context shows it: what all sides of its page start from."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.catalog.browsing import made_on
from headgate.catalog.database import Connection
from headgate.catalog.find import list_branches, load_branch, load_dataset
from headgate.catalog.showing import find_shown
from headgate.model.contexts import BranchContext, parse_context
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import Branch, Dataset, Transaction
from headgate.server.web import addresses
from headgate.server.web.visiting import Visit


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A dataset, its branches, and what one context shows of it."""

    dataset: Dataset
    branches: list[Branch]
    context: str
    # None where the context is a chain or a moment.
    branch: Branch | None
    view: Transaction | None
    # Whether the primary branch has a JobSpec that makes it.
    blue: bool

    def at(self, **query: str | int | None) -> str:
        """This dataset in this context."""
        return addresses.dataset_at(self.dataset.name, branch=self.context, **query)


def load_shown(visit: Visit) -> Shown:
    """What the context shows: the branch asked for, else the primary one, else any there is."""
    name = parse_dataset_name(visit.subject)

    def read(connection: Connection) -> Shown:
        dataset = load_dataset(connection, name)
        branches = list_branches(connection, dataset.id)
        known = {branch.name: branch for branch in branches}
        default = visit.primary if visit.primary in known else next(iter(known), visit.primary)
        context = parse_context(visit.asked("branch", default))
        # A dataset may have no branch at all: what a failed build left of it.
        if known and isinstance(context, BranchContext) and not known.keys() & set(context.chain):
            load_branch(connection, dataset, context.branch)
        if isinstance(context, BranchContext) and _shows_itself(known.get(context.branch)):
            # What it falls back to does not matter, and a branch of its own has a history.
            context = BranchContext(chain=context.chain[:1])
        return Shown(
            dataset=dataset,
            branches=branches,
            context=str(context),
            branch=known.get(str(context)),
            view=find_shown(connection, context, dataset),
            blue=bool(made_on(connection, visit.primary, [name])),
        )

    return visit.store.database.read(read)


def _shows_itself(branch: Branch | None) -> bool:
    return branch is not None and branch.view is not None
