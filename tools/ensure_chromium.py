"""Install a browser for the tests if necessary; print the reason if the tests will skip it."""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.support.chromium import find_chromium


def main() -> None:
    """Never fail: tests skip a missing browser, and CI rejects the skip."""
    if find_chromium() is not None:
        return
    reason = _install()
    if find_chromium() is None:
        print(f"test: Chromium is missing ({reason}); the tests of the pages will be skipped")


def _install() -> str:
    """Install the system's package, since no wheel contains a browser; return any failure."""
    apt = shutil.which("apt-get")
    if apt is None:
        return "this machine has no apt-get; install Chromium by its own means"
    if os.geteuid() != 0:
        return "installing a system package takes root; run `apt-get install chromium` as root"
    print("test: no Chromium on this machine; installing the system's package")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt, "install", "--yes", "--quiet", "--no-install-recommends", "chromium"]
    for command in (install, [apt, "update", "--quiet"], install):
        done = subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL)
        if command is install and done.returncode == 0:
            return ""
    return "apt-get failed, see above"


if __name__ == "__main__":
    main()
