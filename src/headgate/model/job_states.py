"""The states that builds and jobs go through; the words are part of the interface."""

from __future__ import annotations

import enum


class JobState(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    ADOPTED = "adopted"


class BuildState(enum.StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
