"""Access control: roles, branch patterns and a rule for every route; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from headgate.errors import AttemptOfAnother, Invalid, RoleDenied
from headgate.model.names import check_label, split_names


class Role(enum.StrEnum):
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


def check_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of branch names that a token may write; at least one is required."""
    found = split_names(patterns)
    if not found:
        raise Invalid("a token needs the branches that it may write: `ana/*`, or `*` for all.")
    return tuple(check_label(pattern, what="a pattern of branch names") for pattern in found)


class Right(enum.StrEnum):
    """A right that a request needs; each role has all rights up to its own."""

    READ = "read"
    WRITE = "write"
    # Code runs in the server's own processes, which needs more trust than data does.
    DELIVER_CODE = "publish code on"
    ADMINISTER = "administer"


_RIGHTS = {
    Role.READER: frozenset({Right.READ}),
    Role.WRITER: frozenset({Right.READ, Right.WRITE}),
    Role.ADMIN: frozenset(Right),
}


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The rights of a token. Patterns (`feature/*`) limit writing; every branch can be read."""

    actor: str
    role: Role
    branches: tuple[str, ...] = ("*",)
    # The operator lets writers publish code, too.
    delivers_code: bool = False

    @property
    def may_write_protected(self) -> bool:
        return self.role is Role.ADMIN


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The right that a route needs; one that writes branches names them before it acts."""

    right: Right
    names_branches: bool = False


_READ = Rule(right=Right.READ)
_WRITE_BRANCH = Rule(right=Right.WRITE, names_branches=True)
# Content that no branch shows: every writer may upload it.
_WRITE_CONTENT = Rule(right=Right.WRITE)
# A task may have no branch to move; if it has one, the route checks that branch too.
_WRITE_SOME = Rule(right=Right.WRITE)
_DELIVER_CODE = Rule(right=Right.DELIVER_CODE, names_branches=True)
_ADMINISTER = Rule(right=Right.ADMINISTER)
# The server reads files of any location for it, so that only admins may do it.
_ADMINISTER_BRANCH = Rule(right=Right.ADMINISTER, names_branches=True)

# Every route of the HTTP API by its operation id, and every action on a context of the Iceberg
# endpoint. A route that is not here is denied to every caller.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "iceberg_read": _READ,
        "iceberg_write": Rule(right=Right.WRITE),
        "show_store": _READ,
        "list_datasets": _READ,
        "create_dataset": _WRITE_BRANCH,
        "show_dataset": _READ,
        "show_content": _READ,
        "register_dataset": _ADMINISTER_BRANCH,
        "list_branches": _READ,
        "create_branch": _WRITE_BRANCH,
        "show_branch": _READ,
        "delete_branch": _WRITE_BRANCH,
        "delete_branch_everywhere": _WRITE_BRANCH,
        "reset_branch": _WRITE_BRANCH,
        "reparent_branch": _WRITE_BRANCH,
        "list_protected": _READ,
        "protect_branch": _ADMINISTER,
        "unprotect_branch": _ADMINISTER,
        "list_tags": _READ,
        "create_tag": _WRITE_BRANCH,
        "delete_tag": _WRITE_BRANCH,
        "open_transaction": _WRITE_BRANCH,
        "open_unit": _WRITE_BRANCH,
        "open_in_unit": _WRITE_BRANCH,
        "show_transaction": _READ,
        "renew_transaction": _WRITE_BRANCH,
        "commit_transaction": _WRITE_BRANCH,
        "abort_transaction": _WRITE_BRANCH,
        "list_files": _READ,
        "get_file": _READ,
        "put_file": _WRITE_BRANCH,
        "delete_file": _WRITE_BRANCH,
        "edit_files": _WRITE_BRANCH,
        "find_content": _READ,
        "get_content": _READ,
        "put_content": _WRITE_CONTENT,
        "find_missing_contents": _READ,
        "get_contents": _READ,
        "put_contents": _WRITE_CONTENT,
        "list_history": _READ,
        "list_publications": _READ,
        "show_publication": _READ,
        "list_events": _READ,
        "list_recoveries": _READ,
        "status": _READ,
        "list_jobspecs": _READ,
        "publish_jobspecs": _DELIVER_CODE,
        "plan": _READ,
        "list_builds": _READ,
        "start_build": _WRITE_BRANCH,
        "show_build": _READ,
        "watch_build": _READ,
        "cancel_build": _WRITE_BRANCH,
        # Of the actor's own builds only: see the route.
        "work_build": _WRITE_BRANCH,
        # Only callers that may run code may read it.
        "get_bundle": _WRITE_CONTENT,
        # Of the actor's own attempts only: see the routes.
        "dispatch_attempt": _WRITE_SOME,
        "renew_attempt": _WRITE_SOME,
        "end_attempt": _WRITE_SOME,
        "open_attempt_tables": _WRITE_BRANCH,
        "show_workspace": _READ,
        "publish_workspace": _WRITE_BRANCH,
        "diff": _READ,
        "mutate": _WRITE_BRANCH,
        "load": _WRITE_BRANCH,
        "merge": _WRITE_BRANCH,
        "plan_schema": _READ,
        "apply_schema": _WRITE_BRANCH,
        "optimize": _WRITE_BRANCH,
        "recover": _ADMINISTER,
        "clean_up": _ADMINISTER,
        "examine": _ADMINISTER,
        "list_tokens": _ADMINISTER,
        "create_token": _ADMINISTER,
        "revoke_token": _ADMINISTER,
    }
)


def rule_of(operation: str | None) -> Rule:
    """Return the rule of a route; a route without a rule is a defect, and is denied."""
    if operation is None or operation not in RULES:
        raise LookupError(f"there is no access rule for {operation}")
    return RULES[operation]


def authorize(grant: Grant, operation: str, *, written: Iterable[str] = ()) -> None:
    """Raise unless the grant may do this on every branch that it would write."""
    rule, branches = rule_of(operation), tuple(written)
    if rule.names_branches and not branches:
        raise LookupError(f"{operation} writes branches and did not name them")
    require(grant, rule.right, written=branches)


def require(grant: Grant, right: Right, *, written: Iterable[str] = ()) -> None:
    """Raise unless the grant has the right, and has it for every branch that is written."""
    if right not in _rights(grant):
        raise RoleDenied(actor=grant.actor, role=grant.role, right=right)
    for branch in written:
        if not any(fnmatchcase(branch, pattern) for pattern in grant.branches):
            raise RoleDenied(
                actor=grant.actor,
                role=grant.role,
                right=f"{right} branch {branch!r} (only {', '.join(grant.branches)})",
            )


def require_within(grant: Grant, patterns: Iterable[str]) -> None:
    """Raise unless a grant for these patterns gives no more than this grant has."""
    for pattern in patterns:
        if not any(_lies_within(pattern, own) for own in grant.branches):
            raise RoleDenied(
                actor=grant.actor,
                role=grant.role,
                right=f"grant branches {pattern!r} (only {', '.join(grant.branches)})",
            )


def _lies_within(pattern: str, own: str) -> bool:
    """Return whether `own` certainly matches everything that the pattern matches."""
    if "[" in pattern or "[" in own:
        return own in ("*", pattern)
    # No branch name has this character, so that only a star or a question mark matches it.
    one = "\0"
    return all(
        fnmatchcase(pattern.replace("*", fill).replace("?", one), own)
        for fill in ("", one, one + one)
    )


def may_write(grant: Grant, branch: str) -> bool:
    """Return whether the grant may write this branch."""
    try:
        require(grant, Right.WRITE, written=(branch,))
    except RoleDenied:
        return False
    return True


def check_supersedable(grant: Grant, *, key: str, actor: str, branch: str | None) -> None:
    """Raise unless the grant may supersede an attempt: its actor's, an admin's, its branch's."""
    if grant.role is Role.ADMIN or actor == grant.actor:
        return
    if branch is None or not may_write(grant, branch):
        raise AttemptOfAnother(key=key, actor=actor)


def _rights(grant: Grant) -> frozenset[Right]:
    rights = _RIGHTS[grant.role]
    if grant.delivers_code and Right.WRITE in rights:
        return rights | {Right.DELIVER_CODE}
    return rights
