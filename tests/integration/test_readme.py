"""The front page is correct: its first store, command by command, inside a clone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.following import follow
from tests.support.source import ROOT


def test_first_store_of_the_front_page_followed_to_the_letter_works(tmp_path: Path) -> None:
    # A clone of this project, whose branch is not the one that the page names.
    clone = tmp_path / "clone"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", clone], check=True)
    page = ROOT / "README.md"
    said = follow(page, clone, bin=tmp_path / "bin", below="## A first store")
    assert "trial" in said and "raw.scans@trial" in said
