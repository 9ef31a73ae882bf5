"""Table of rights."""

from __future__ import annotations

import pytest

from headgate.errors import RoleDenied
from headgate.model.access import Grant, Right, Role, authorize, require, require_within


@pytest.mark.parametrize(
    ("role", "right", "allowed"),
    [
        (Role.READER, Right.READ, True),
        (Role.READER, Right.WRITE, False),
        (Role.READER, Right.ADMINISTER, False),
        (Role.WRITER, Right.READ, True),
        (Role.WRITER, Right.WRITE, True),
        (Role.WRITER, Right.ADMINISTER, False),
        (Role.ADMIN, Right.READ, True),
        (Role.ADMIN, Right.WRITE, True),
        (Role.ADMIN, Right.ADMINISTER, True),
    ],
)
def test_require_role_has_all_rights_up_to_its_own(role: Role, right: Right, allowed: bool) -> None:
    grant = Grant(actor="ana", role=role)
    if allowed:
        require(grant, right)
    else:
        with pytest.raises(RoleDenied):
            require(grant, right)


@pytest.mark.parametrize(
    ("branch", "allowed"),
    [("ana/x", True), ("ana/x/y", True), ("trial", True), ("ana", False), ("master", False)],
)
def test_require_write_is_bound_by_branch_patterns(branch: str, allowed: bool) -> None:
    grant = Grant(actor="ana", role=Role.WRITER, branches=("ana/*", "trial"))
    if allowed:
        require(grant, Right.WRITE, written=[branch])
    else:
        with pytest.raises(RoleDenied, match=branch):
            require(grant, Right.WRITE, written=[branch])


@pytest.mark.parametrize(
    ("own", "given", "allowed"),
    [
        ("*", "*", True),
        ("*", "a[bc]", True),
        ("feature/*", "feature/*", True),
        ("feature/*", "feature/ana-*", True),
        ("feature/*", "feature/x", True),
        ("feature/*", "*", False),
        ("feature/*", "feat*", False),
        ("feature/?", "feature/*", False),
        ("feature/?", "feature/?", True),
        ("feature/[!a]", "feature/?", False),
        ("feature/[!a]", "feature/[!a]", True),
    ],
)
def test_token_is_handed_out_only_for_branches_that_its_giver_has(
    own: str, given: str, allowed: bool
) -> None:
    grant = Grant(actor="ada", role=Role.ADMIN, branches=(own,))
    if allowed:
        require_within(grant, Grant(actor="bob", role=Role.WRITER, branches=(given,)))
    else:
        with pytest.raises(RoleDenied, match="grant the right to write branches"):
            require_within(grant, Grant(actor="bob", role=Role.WRITER, branches=(own, given)))


def test_operation_without_a_rule_lets_nobody_through() -> None:
    with pytest.raises(LookupError):
        authorize(Grant(actor="ana", role=Role.ADMIN), "invent_an_operation")


def test_operation_that_writes_branches_must_name_them() -> None:
    admin = Grant(actor="ana", role=Role.ADMIN)
    with pytest.raises(LookupError, match="did not name them"):
        authorize(admin, "put_file")
    authorize(admin, "put_file", written=["master"])
    with pytest.raises(RoleDenied, match="walt/"):
        walt = Grant(actor="w", role=Role.WRITER, branches=("walt/*",))
        authorize(walt, "put_file", written=["m"])
