"""Starting a build again from its page, on the server's own workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.catalog.builds import BuildRecord
from headgate.model.ids import BuildId
from headgate.server.building import ServerBuilds
from headgate.server.web.build_page import Again
from headgate.server.web.visiting import Visit

if TYPE_CHECKING:
    from headgate.builds.ledger import Watch
    from headgate.builds.outcome import BuildOutcome


def again_on(builds: ServerBuilds) -> Again:
    """The same targets, chain and options in the visitor's name; what is fresh stays as it is."""

    def again(visit: Visit, build: BuildRecord) -> str:
        grant, asked = visit.grant, build.body
        store = visit.store.acting_as(grant.actor, may_write_protected=grant.may_write_protected)

        def work(id: BuildId, watch: Watch) -> BuildOutcome:
            return store.build(
                asked["targets"],
                branch=build.branch,
                fallback=asked["fallback"],
                upstream=asked.get("upstream", False),
                atomic=asked.get("atomic", False),
                parameters=asked.get("parameters", {}),
                watch=watch,
                id=id,
            )

        return builds.start(work)

    return again
