"""Failpoints: all named places where a test may kill, pause or fail a process.

Nothing is armed unless `headgate.testing` arms it inside the process; otherwise `reach` costs one
comparison.
"""

import enum
from collections.abc import Callable


class Failpoint(enum.StrEnum):
    OPEN_APPLIED = "open.applied"
    OPEN_COMMITTED = "open.committed"
    FILES_OBJECT_STORED = "files.object_stored"
    FILES_TREE_STORED = "files.tree_stored"
    STAGE_APPLIED = "stage.applied"
    STAGE_COMMITTED = "stage.committed"
    PUBLISH_LOCKED = "publish.locked"
    PUBLISH_APPLIED = "publish.applied"
    PUBLISH_COMMITTED = "publish.committed"
    ABORT_APPLIED = "abort.applied"
    BUILD_JOB_ENDED = "build.job_ended"
    BUILD_HANDED_OVER = "build.handed_over"
    TASK_DOWNLOADING = "task.downloading"
    TASK_DOWNLOADED = "task.downloaded"
    TASK_BODY_DONE = "task.body_done"
    TASK_FENCED_FIRST = "task.fenced_first"
    TASK_STAGED = "task.staged"
    TASK_FENCED_SECOND = "task.fenced_second"
    TASK_HEAD_READ = "task.head_read"
    TASK_PUBLISHED = "task.published"
    TASK_ENDED = "task.ended"
    INTENT_RECORDED = "intent.recorded"
    INTENT_EFFECT_DONE = "intent.effect_done"
    INTENT_CLEARED = "intent.cleared"
    RECOVERY_TAKEN_OVER = "recovery.taken_over"
    RECOVERY_CLASSIFIED = "recovery.classified"
    RECOVERY_SETTLED = "recovery.settled"
    MUTATION_PREPARED = "mutation.prepared"
    MUTATION_DATA_WRITTEN = "mutation.data_written"
    MUTATION_VERSION_STAGED = "mutation.version_staged"
    MUTATION_STAGED = "mutation.staged"
    CLEANUP_CONDEMNED = "cleanup.condemned"
    CLEANUP_SWEPT = "cleanup.swept"


_hook: Callable[[Failpoint], None] | None = None


def reach(point: Failpoint) -> None:
    """Run the armed hook, if any, for this place."""
    if _hook is not None:
        _hook(point)


def arm(hook: Callable[[Failpoint], None] | None) -> None:
    """Set the hook that runs when a place is reached; None disarms."""
    global _hook
    _hook = hook
