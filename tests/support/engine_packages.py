"""Python packages of engines that Headgate does not depend on, fetched once by a lock file.

Their tests run in processes of their own, set up by the code of the engines' pages.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.maven import cached, ensure, must
from tests.support.source import ROOT

_PAGES = ROOT / "docs" / "engines"


@dataclass(frozen=True, kw_only=True)
class Packages:
    """A directory of packages, to be put on the path of a process."""

    # In messages, with the size of the download.
    title: str
    # Also of the directory in the cache, with the version.
    name: str
    version: str

    @property
    def _place(self) -> Path:
        return cached(f"{self.name}-{self.version}")

    def find(self) -> Path | None:
        """Return the directory; None if the packages were never fetched."""
        return self._place if self._place.is_dir() else None

    def require(self) -> Path:
        """Return the directory; skip the test where the packages were never fetched."""
        if (place := self.find()) is None:
            pytest.skip(f"no {self.title}: not fetched (make test-engines says why)")
        return place

    def ensure_fetched(self) -> Path:
        """Return the directory, and fetch the packages if necessary."""
        return ensure(self._place, self._fetch)

    def _fetch(self, scratch: Path) -> Path:
        place, lock = scratch / "packages", ROOT / "tools" / f"{self.name}.lock"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--require-hashes", "--target", str(place)]
        must([*pip, *options, "--requirement", str(lock)], scratch)
        return place


# Another release of DuckDB than the one that Headgate uses: its extension is published later.
DUCKDB = Packages(title="DuckDB 1.5.5 with Iceberg (50 MB)", name="duckdb", version="1.5.5")
FRAMES = Packages(
    title="Polars and Daft (100 MB)", name="frames", version="polars-2.1.0-daft-0.7.26"
)


def blocks_of_page(page: str, language: str) -> list[str]:
    """Return the code of the page on an engine."""
    text = (_PAGES / f"{page}.md").read_text()
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.S)
    return found
