"""A bundle as a file for other machines: unpacked, or put on the path, under its own name."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from headgate.transforms.finding import import_roots

_TOP = PurePosixPath(".")


def archive_of(bundle: Path) -> Path:
    """A zip beside an unpacked bundle, made once, whose root is where its modules are imported.

    Spark tells archives apart by their path, so the same bundle must always have the same one.
    """
    archive = bundle.with_name(f"{bundle.name}.zip")
    if not archive.is_file():
        handle, draft = tempfile.mkstemp(prefix=f".{bundle.name[:12]}-", dir=bundle.parent)
        with os.fdopen(handle, "wb") as file:
            _write(bundle, file)
        Path(draft).replace(archive)
    return archive


def _write(bundle: Path, file: IO[bytes]) -> None:
    # Later ones win: the `src` layout's modules come first on the path.
    entries = {
        path.relative_to(root).as_posix(): path
        for root in reversed(import_roots(bundle))
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(file, "w") as archive:
        # A package without `__init__.py` is found in a zip only by its directory's own entry.
        for parent in sorted({p for name in entries for p in PurePosixPath(name).parents} - {_TOP}):
            archive.mkdir(str(parent))
        for name, path in sorted(entries.items()):
            archive.write(path, name)
