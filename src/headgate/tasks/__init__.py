"""What task modules import; loads no SQL, no Spark and no network client."""

from headgate.errors import TaskFailed, TaskTerminalError
from headgate.tasks.checks import forbid_glob, require_dir, require_file, require_glob
from headgate.tasks.controls import (
    ExecutionLimits,
    PublishBudget,
    RetryPolicy,
    TaskControls,
    TimeoutPolicy,
)
from headgate.tasks.declaring import TaskDefinition, WorkspaceSpec, task
from headgate.tasks.metrics import MetricRecorder, MetricSpec
from headgate.tasks.tables import TableSpec

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
