"""Rules for a publication to lakeFS whose attempt died before the catalog recorded it; pure."""

import enum
from dataclasses import dataclass

RECOVERY_ACTOR = "headgate:recovery"


class Landing(enum.StrEnum):
    """Outcome of a move of a lakeFS branch, as recovery records it."""

    LANDED = "landed"
    NOT_LANDED = "not landed"
    # The branch shows a commit of another writer: the move may lie below it, or never happened.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class WorkspaceHead:
    """The commit that a lakeFS branch shows."""

    commit: str
    # The execution named in the commit's metadata; None on a commit of another writer.
    execution: str | None


def landing_of(
    *, expected: str, planned: str | None, execution: str, head: WorkspaceHead | None
) -> Landing:
    """Classify a move by the head alone; None stands for a branch that is gone."""
    if head is None:
        return Landing.UNKNOWN
    if head.commit == planned or head.execution == execution:
        return Landing.LANDED
    return Landing.NOT_LANDED if head.commit == expected else Landing.UNKNOWN
