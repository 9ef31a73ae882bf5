"""Who may do what: roles and branch patterns, decided in this one place; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headgate.errors import RoleDenied


class Role(enum.StrEnum):
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


class Right(enum.StrEnum):
    """What a request wants; each role has all rights up to its own."""

    READ = "read"
    WRITE = "write"
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


def require(grant: Grant, right: Right, *, written: Iterable[str] = ()) -> None:
    """Raises unless the grant has the right, and for every branch that would be written."""
    if right not in _RIGHTS[grant.role]:
        raise RoleDenied(actor=grant.actor, role=grant.role, right=right)
    for branch in written:
        if not any(fnmatchcase(branch, pattern) for pattern in grant.branches):
            raise RoleDenied(
                actor=grant.actor,
                role=grant.role,
                right=f"{right} branch {branch!r} (only {', '.join(grant.branches)})",
            )
