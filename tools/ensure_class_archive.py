"""Make the archive of Spark's classes, with which the JVMs of the tests start faster."""

from __future__ import annotations

import subprocess

from headgate.errors import HeadgateError
from tests.support.class_archive import find_archive, make_archive


def main() -> None:
    """Never fail: without the archive the tests only take longer."""
    try:
        if find_archive() is None:
            print("test: archiving Spark's classes (once)")
            make_archive()
    except (HeadgateError, OSError, subprocess.SubprocessError) as error:
        print(f"test: Spark's classes could not be archived: {error}")


if __name__ == "__main__":
    main()
