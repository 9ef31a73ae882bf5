"""API for task modules; importing it loads no SQL, no Spark and no network client."""

from headgate.errors import TaskFailed, TaskTerminalError
from headgate.tasks.declare import (
    ExecutionLimits,
    MetricRecorder,
    MetricSpec,
    PublishBudget,
    RetryPolicy,
    TableSpec,
    TaskControls,
    TaskDefinition,
    TimeoutPolicy,
    WorkspaceSpec,
    forbid_glob,
    require_dir,
    require_file,
    require_glob,
    task,
)

__all__ = [
    "ExecutionLimits",
    "MetricRecorder",
    "MetricSpec",
    "PublishBudget",
    "RetryPolicy",
    "TableSpec",
    "TaskControls",
    "TaskDefinition",
    "TaskFailed",
    "TaskTerminalError",
    "TimeoutPolicy",
    "WorkspaceSpec",
    "forbid_glob",
    "require_dir",
    "require_file",
    "require_glob",
    "task",
]
