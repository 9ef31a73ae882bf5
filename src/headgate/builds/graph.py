"""The graph of a plan, with what the catalog knows of its datasets."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.builds.plan import Plan
from headgate.builds.report import PLANNED_STATES
from headgate.catalog.database import Connection
from headgate.catalog.find import branches_named, find_datasets
from headgate.catalog.jobspecs import datasets_with_jobspec
from headgate.model.freshness import Decided
from headgate.model.graph.nodes import Graph, GraphFacts, make_graph
from headgate.model.job_states import JobState
from headgate.model.names import DatasetName, parse_dataset_name


def graph_of(
    connection: Connection, plan: Plan, *, primary: str, states: Sequence[JobState] | None = None
) -> Graph:
    """As the plan has it, or with the states that a build of it has reached."""
    planned = [PLANNED_STATES[decision.state] for decision in plan.decisions]
    fresh = [d for d in plan.decisions if d.state is Decided.FRESH]
    kept = [name for decision in fresh for name in decision.job.outputs]
    read = {given.dataset for decision in plan.decisions for given in decision.inputs}
    chain = plan.request.chain
    facts = GraphFacts(
        chain=chain,
        primary=primary,
        kinds={n: d.kind for n, d in find_datasets(connection, read).items()},
        shown_on=_shown_on(connection, chain, kept),
        blue={parse_dataset_name(text) for text in datasets_with_jobspec(connection, primary)},
    )
    return make_graph(plan.decisions, states or planned, facts)


def _shown_on(
    connection: Connection, chain: Sequence[str], names: Sequence[DatasetName]
) -> dict[DatasetName, str]:
    """Of each dataset, the first branch of the chain with a COMMITTED transaction."""
    ids = [dataset.id for dataset in find_datasets(connection, names).values()]
    seen = {(b.dataset, b.name) for b in branches_named(connection, chain, ids) if b.view}
    # Later branches first, so that the first of the chain has the last word.
    return {name: b for b in reversed(chain) for name in names if (name, b) in seen}
