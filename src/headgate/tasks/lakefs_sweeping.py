"""Staging branches whose attempt is over: removed by cleanup, however the attempt ended."""

from __future__ import annotations

from headgate.catalog.database import Database
from headgate.catalog.workspaces import known_repositories, live_attempts
from headgate.errors import NotFound
from headgate.lakefs.client import LakeFS
from headgate.tasks.lakefs_store import STAGING, staging_prefix


def sweep_staging(database: Database, lakefs: LakeFS, *, dry_run: bool = False) -> list[str]:
    """Deletes them in every repository that tasks have published to; which they were."""
    swept = []
    for repository in database.read(known_repositories):
        try:
            found = lakefs.list_branches(repository, STAGING)
        except NotFound:
            # The whole repository is gone, and its branches with it.
            continue
        # Asked after the listing: what is listed and not live now was left behind.
        living = tuple(staging_prefix(attempt) for attempt in database.read(live_attempts))
        for branch in found:
            if living and branch.startswith(living):
                continue
            if not dry_run:
                lakefs.delete_branch(repository, branch)
            swept.append(f"{repository}/{branch}")
    return swept
