"""Options of plans and builds, the same for an embedded store and for the client of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

from headgate.builds.plan import PlanRequest
from headgate.errors import Invalid
from headgate.model.names import check_branch_name, check_options, split_names
from headgate.settings import BuildSettings


class PlanOptions(TypedDict, total=False):
    """Options of a plan, for an embedded and a served store; only `branch` is required."""

    branch: Required[str]
    # Branch names, also as `a,b`. Default: the configured fallbacks, else the primary branch.
    fallback: Sequence[str] | None
    upstream: bool
    # Execute every job, also fresh ones.
    force: bool
    # Incremental jobs read all of their inputs.
    full: bool
    parameters: Mapping[str, Any] | None


class BuildOptions(PlanOptions, total=False):
    """Options of a build: those of its plan, and those of its execution."""

    # Publish nothing until every job of the build has succeeded.
    atomic: bool
    retries: int
    abort_on_failure: bool
    wait_seconds: float
    task_key: str | None


def check_patience(asked: BuildOptions) -> None:
    """Raise `Invalid` if the number of retries or the time to wait is negative."""
    for option, given in (
        ("retries", asked.get("retries", 0)),
        ("wait_seconds", asked.get("wait_seconds", 0)),
    ):
        if not given >= 0:
            raise Invalid(f"{option} is {given!r}: give 0 or more.")


def plan_request(
    targets: Sequence[str], asked: PlanOptions, *, builds: BuildSettings
) -> PlanRequest:
    """Return the request for a plan of these targets, with defaults from the settings."""
    check_options(asked, BuildOptions, needed=("branch",))
    fallback = asked.get("fallback")
    wanted = split_names(targets)
    if not wanted:
        raise Invalid("name the datasets to build.")
    for name in (asked["branch"], *split_names(fallback or ())):
        check_branch_name(name)
    return PlanRequest(
        targets=wanted,
        branch=asked["branch"],
        fallback=builds.fallback_of(asked["branch"]) if fallback is None else split_names(fallback),
        upstream=asked.get("upstream", False),
        force=asked.get("force", False),
        full=asked.get("full", False),
        adopt=builds.adopt,
        parameters=asked.get("parameters") or {},
    )
