"""Who may do what: roles, branch patterns and a rule for every route; decided here, pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from headgate.errors import Invalid, RoleDenied
from headgate.model.names import check_label, listed


class Role(enum.StrEnum):
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


def check_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Of branch names that a token may write. None at all is more likely a slip than a wish."""
    found = listed(patterns)
    if not found:
        raise Invalid("a token needs branches that it may write: `ana/*`, or `*` for all of them.")
    return tuple(check_label(pattern, what="a pattern of branch names") for pattern in found)


class Right(enum.StrEnum):
    """What a request wants; each role has all rights up to its own."""

    READ = "read"
    WRITE = "write"
    # Code that the server's own processes will run: a trust of another kind than data.
    DELIVER_CODE = "publish code on"
    ADMINISTER = "administer"


_RIGHTS = {
    Role.READER: frozenset({Right.READ}),
    Role.WRITER: frozenset({Right.READ, Right.WRITE}),
    Role.ADMIN: frozenset(Right),
}


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a token stands for. Patterns (`feature/*`) bound writing; every branch can be read."""

    actor: str
    role: Role
    branches: tuple[str, ...] = ("*",)
    # The operator's word that writers may, too.
    delivers_code: bool = False

    @property
    def may_write_protected(self) -> bool:
        return self.role is Role.ADMIN


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a route needs; one that writes branches must say which before it may act."""

    right: Right
    names_branches: bool = False


_READ = Rule(right=Right.READ)
_WRITE_BRANCH = Rule(right=Right.WRITE, names_branches=True)
# Content that no branch shows: who may write some branch may upload.
_WRITE_CONTENT = Rule(right=Right.WRITE)
# A task may have no branch to move; where it has one, that is asked about too.
_WRITE_SOME = Rule(right=Right.WRITE)
_DELIVER_CODE = Rule(right=Right.DELIVER_CODE, names_branches=True)
_ADMINISTER = Rule(right=Right.ADMINISTER)
# The server reads files for it, wherever they are: nobody's business but an admin's.
_ADMINISTER_BRANCH = Rule(right=Right.ADMINISTER, names_branches=True)

# Every route of the HTTP API by its operation id, and every action on a context of the Iceberg
# endpoint. A route that is not here is refused to everybody.
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
        # Code is for those who may run it.
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
    """The rule of a route; one without a rule is a defect that lets nobody through."""
    if operation is None or operation not in RULES:
        raise LookupError(f"no rule says who may {operation}")
    return RULES[operation]


def allow(grant: Grant, operation: str, *, written: Iterable[str] = ()) -> None:
    """Raises unless the grant may do this, on every branch that it would write."""
    rule, branches = rule_of(operation), tuple(written)
    if rule.names_branches and not branches:
        raise LookupError(f"{operation} writes branches and did not say which")
    require(grant, rule.right, written=branches)


def require(grant: Grant, right: Right, *, written: Iterable[str] = ()) -> None:
    """Raises unless the grant has the right, and for every branch that would be written."""
    if right not in _rights(grant):
        raise RoleDenied(actor=grant.actor, role=grant.role, right=right)
    for branch in written:
        if not any(fnmatchcase(branch, pattern) for pattern in grant.branches):
            raise RoleDenied(
                actor=grant.actor,
                role=grant.role,
                right=f"{right} branch {branch!r} (only {', '.join(grant.branches)})",
            )


def allow_handing_out(grant: Grant, patterns: Iterable[str]) -> None:
    """Raises unless each pattern lies within the grant's own: nobody gives what is not theirs."""
    for pattern in patterns:
        if not any(_lies_within(pattern, own) for own in grant.branches):
            raise RoleDenied(
                actor=grant.actor,
                role=grant.role,
                right=f"give away branches {pattern!r} (only {', '.join(grant.branches)})",
            )


def _lies_within(pattern: str, own: str) -> bool:
    """Whether all that a pattern matches, the other matches too; in doubt it does not."""
    if "[" in pattern or "[" in own:
        return own in ("*", pattern)
    # A branch cannot have this character, so that only a star or a question mark takes it.
    one = "\0"
    return all(
        fnmatchcase(pattern.replace("*", fill).replace("?", one), own)
        for fill in ("", one, one + one)
    )


def may_write(grant: Grant, branch: str) -> bool:
    """Whether the grant's patterns let it write this branch."""
    try:
        require(grant, Right.WRITE, written=(branch,))
    except RoleDenied:
        return False
    return True


def _rights(grant: Grant) -> frozenset[Right]:
    rights = _RIGHTS[grant.role]
    if grant.delivers_code and Right.WRITE in rights:
        return rights | {Right.DELIVER_CODE}
    return rights
