"""Landed, not landed or unknown: a table of all cases."""

from __future__ import annotations

import pytest

from headgate.model.recovery import Landing, WorkspaceHead, landing_of


@pytest.mark.parametrize(
    ("planned", "head", "execution", "landing"),
    [
        (None, "A", None, Landing.NOT_LANDED),
        # The head that an earlier execution created is the input of the move.
        (None, "A", "earlier", Landing.NOT_LANDED),
        (None, "M", "me", Landing.LANDED),
        (None, "M", "other", Landing.UNKNOWN),
        (None, "M", None, Landing.UNKNOWN),
        ("C", "A", None, Landing.NOT_LANDED),
        ("C", "C", None, Landing.LANDED),
        ("C", "X", None, Landing.UNKNOWN),
    ],
)
def test_landing_is_told_by_the_head_alone(
    planned: str | None, head: str, execution: str | None, landing: Landing
) -> None:
    shown = WorkspaceHead(commit=head, execution=execution)
    assert landing_of(expected="A", planned=planned, execution="me", head=shown) is landing


@pytest.mark.parametrize("planned", [None, "C"])
def test_landing_on_a_branch_that_is_gone_is_unknown(planned: str | None) -> None:
    found = landing_of(expected="A", planned=planned, execution="me", head=None)
    assert found is Landing.UNKNOWN
