"""How up to date a branch is: what a build of all its transforms would have to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headgate.builds.plan import Plan
from headgate.catalog.jobspecs import datasets_with_jobspec
from headgate.model.freshness import Decided
from headgate.server.web.markup import Child, tag
from headgate.server.web.pieces import badge
from headgate.server.web.visiting import Visit


def plan_everything(visit: Visit, branch: str, fallback: Sequence[str]) -> Plan | None:
    """What a build of all that the chain has transforms for would do; None: there are none."""

    def names(name: str) -> set[str]:
        return visit.store.database.read(lambda c: datasets_with_jobspec(c, name))

    targets = sorted(set().union(*(names(name) for name in (branch, *fallback))))
    if not targets:
        return None
    return visit.store.decide(targets, branch=branch, fallback=fallback)


def freshness_counts(visit: Visit, branch: str) -> Child:
    """How many transforms are fresh, to be adopted, or stale on a branch."""
    fallback = visit.store.settings.builds.fallback_of(branch)
    plan = plan_everything(visit, branch, fallback)
    if plan is None:
        return tag("span", "no transform is published", class_="faint")
    counts = Counter(decision.state for decision in plan.decisions)
    shown = [badge(f"{counts[s]} {s.value}", _TONES[s]) for s in Decided if counts[s]]
    return tag("span", shown, class_="chips")


_TONES = {Decided.FRESH: "good", Decided.ADOPTED: "taken", Decided.STALE: "warn"}
