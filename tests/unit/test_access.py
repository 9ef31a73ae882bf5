"""Rights, as a table."""

from __future__ import annotations

import pytest

from headgate.errors import RoleDenied
from headgate.model.access import Grant, Right, Role, require


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
