"""Plugin of pytest: a working directory for each process of the tests, with every file of the root.

It has a link to each entry of the repository's directory, so relative paths work. What a test, or a
process that it started, leaves under a relative path is found here, and not by the tests that
other workers run at that moment.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

# Made by pytest itself and by its plugins.
_CACHES = {".pytest_cache", ".hypothesis", "__pycache__"}


_DIRECTORY = pytest.StashKey["WorkingDirectory"]()


def pytest_configure(config: pytest.Config) -> None:
    directory = config.stash[_DIRECTORY] = WorkingDirectory(config.rootpath)
    config.add_cleanup(directory.remove)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Not earlier: pytest and the workers that it starts resolve paths of the command line, such as
    # those of `--ignore`, in the directory where they are.
    session.config.stash[_DIRECTORY].enter()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail the test during which an entry appeared in the working directory."""
    if left := item.config.stash[_DIRECTORY].find_left():
        pytest.fail(f"the test left {', '.join(map(str, left))}", pytrace=False)


class WorkingDirectory:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._before = Path.cwd()
        self._here = Path(mkdtemp(prefix="headgate-tests-"))
        for entry in root.iterdir():
            (self._here / entry.name).symlink_to(entry)
        self._known = {place: _names(place) for place in (self._here, root)}

    def enter(self) -> None:
        os.chdir(self._here)

    def remove(self) -> None:
        os.chdir(self._before)
        shutil.rmtree(self._here)

    def find_left(self) -> list[Path]:
        """Return what appeared here, or in the repository, since the last call.

        The second can be the work of another worker's test, which used an absolute path.
        """
        found = []
        for place, known in self._known.items():
            new = _names(place) - known - _CACHES
            known.update(new)
            found += [place / name for name in sorted(new)]
        return found


def _names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}
