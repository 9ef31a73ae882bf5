"""Publishing what a commit declares: its code first, then its JobSpecs on a branch's name."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.builds.discovery import Discovery
from headgate.builds.logic import Suspicion
from headgate.catalog.database import Database
from headgate.catalog.jobspecs import PublishedJobSpec, publish_jobspecs
from headgate.catalog.sweeping import sweeping_alone
from headgate.model.jobspecs import Source
from headgate.model.names import check_branch_name
from headgate.model.ports import ObjectStore


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """What was published, what is gone, and what a person should look at."""

    source: Source
    published: tuple[PublishedJobSpec, ...]
    removed: tuple[str, ...]
    suspicions: tuple[Suspicion, ...]
    unreachable: tuple[str, ...]


def bundle_key(digest: str) -> str:
    """Where a bundle is stored below the warehouse."""
    return f"bundles/{digest}.zip"


def publish_discovery(
    database: Database, objects: ObjectStore, found: Discovery, *, actor: str
) -> Publishing:
    """Publishes what a project declares; what it no longer declares gets a removed mark."""
    check_branch_name(found.source.branch)
    # A sweep must not take the bundle between its storing and its first mention.
    with sweeping_alone(database):
        # The code first: a JobSpec never names a bundle that is not there.
        objects.put(bundle_key(found.bundle.digest), found.bundle.data)
        published, removed = publish_jobspecs(
            database,
            branch=found.source.branch,
            repository=found.source.repository,
            commit=found.source.commit,
            clean=found.source.clean,
            actor=actor,
            specs=[
                {"outputs": [str(o.dataset) for o in spec.outputs], "jobspec": spec.to_json()}
                for spec in found.jobspecs
            ],
        )
    return Publishing(
        source=found.source,
        published=tuple(published),
        removed=tuple(removed),
        suspicions=found.suspicions,
        unreachable=found.unreachable,
    )
