"""The reference page equals the current help of the command line."""

from __future__ import annotations

import shutil

import pytest

from tools.make_reference import TARGET, make_reference


def test_reference_as_committed_is_up_to_date() -> None:
    assert TARGET.read_text() == make_reference(), "run `make docs`"


def test_reference_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_reference()
    monkeypatch.setenv("COLUMNS", "40")
    assert shutil.get_terminal_size().columns == 40
    assert make_reference() == before
