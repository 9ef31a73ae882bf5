"""The tutorial is correct: its commands are executed, in order, in an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.connection import open as open_store
from tests.support.following import follow
from tests.support.source import ROOT
from tests.support.tables import read_table

pytestmark = pytest.mark.timeout(900)


def test_tutorial_followed_to_the_letter_promotes_the_branch(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    said = follow(ROOT / "docs" / "tutorial.md", project, bin=tmp_path / "bin")
    assert "adopted" in said
    with open_store(project) as store:
        rows = read_table(store, "master", "shop.totals")
    assert sorted((row["region"], row["largest"]) for row in rows) == [("north", 30), ("south", 20)]
