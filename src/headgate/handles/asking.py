"""What may be asked of a plan and of a build, the same here and of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

from headgate.builds.plan import PlanRequest
from headgate.errors import Invalid
from headgate.model.names import check_branch_name, listed
from headgate.model.options import check_options
from headgate.settings import BuildSettings


class PlanAsked(TypedDict, total=False):
    """How targets are planned; all but the branch may be left out."""

    branch: Required[str]
    # Names, also as `a,b`; where it is left out: as configured, else the primary branch.
    fallback: Sequence[str] | None
    upstream: bool
    # Every job runs, fresh or not.
    force: bool
    # Incremental jobs read everything.
    full: bool
    parameters: Mapping[str, Any] | None


class BuildAsked(PlanAsked, total=False):
    """How a plan is carried out."""

    # Nothing is visible until the whole build has passed.
    atomic: bool
    retries: int
    abort_on_failure: bool
    wait_seconds: float
    task_key: str | None


def check_patience(asked: BuildAsked) -> None:
    """How often and how long a build tries."""
    for option, given in (
        ("retries", asked.get("retries", 0)),
        ("wait_seconds", asked.get("wait_seconds", 0)),
    ):
        if not given >= 0:
            raise Invalid(f"{option} is {given!r}: give 0 or more.")


def plan_request(targets: Sequence[str], asked: PlanAsked, *, builds: BuildSettings) -> PlanRequest:
    """The request for a plan of these targets."""
    check_options(asked, BuildAsked, needed=("branch",))
    fallback = asked.get("fallback")
    wanted = listed(targets)
    if not wanted:
        raise Invalid("name the datasets to build.")
    for name in (asked["branch"], *listed(fallback or ())):
        check_branch_name(name)
    return PlanRequest(
        targets=wanted,
        branch=asked["branch"],
        fallback=builds.fallback_of(asked["branch"]) if fallback is None else listed(fallback),
        upstream=asked.get("upstream", False),
        force=asked.get("force", False),
        full=asked.get("full", False),
        adopt=builds.adopt,
        parameters=asked.get("parameters") or {},
    )
