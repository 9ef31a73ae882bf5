"""Bundles: the Python code of a project as one reproducible, content-addressed archive."""

import hashlib
import io
import keyword
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headgate.errors import HeadgateError, Invalid, ObjectCorrupted
from headgate.model.names import check_file_path
from headgate.storage.local import make_private_directory
from headgate.transforms.discovery import SOURCE_LAYOUT

# The earliest time of the zip format; a real one would make equal content differ.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_PLAIN_FILE = 0o100644 << 16
_UNIX = 3
# Of all files together, unpacked: an archive may be a thousand times smaller.
_UNPACKED_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A reproducible zip: equal files make equal bytes."""

    data: bytes
    digest: str


def make_bundle(tree: Path, data_files: Iterable[str] = ()) -> Bundle:
    """Return a bundle of all Python files of an exported tree, and of the data files."""
    names = {*python_files(tree), *data_files}
    buffer = io.BytesIO()
    # Stored, not deflated: compressed bytes depend on the version of zlib.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(names):
            entry = zipfile.ZipInfo(check_file_path(name), date_time=_NO_TIME)
            entry.external_attr = _PLAIN_FILE
            entry.create_system = _UNIX
            archive.writestr(entry, (tree / name).read_bytes())
    data = buffer.getvalue()
    return Bundle(data=data, digest=hashlib.sha256(data).hexdigest())


def check_bundle(data: bytes) -> None:
    """Raise if the data is not a zip, is damaged, or has a path outside its directory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_entries(archive.infolist())
            broken = archive.testzip()
    except HeadgateError:
        raise
    # The library's errors on bytes that are not a zip have no common base class.
    except Exception as error:
        raise Invalid(f"the bundle is not a zip archive: {error}.") from error
    if broken is not None:
        raise Invalid(f"the file {broken!r} of the bundle is damaged.", path=broken)


def _check_entries(entries: Sequence[zipfile.ZipInfo]) -> None:
    """Raise if the files cannot all be unpacked into one directory, or are too large."""
    size = sum(entry.file_size for entry in entries)
    if size > _UNPACKED_BYTES:
        raise Invalid(f"the files of the bundle have {size} bytes, more than a bundle may have.")
    names = Counter(check_file_path(entry.filename) for entry in entries)
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    clash = next((name for name, count in names.items() if name in folders or count > 1), None)
    if clash is not None:
        raise Invalid(f"the bundle has more than one file {clash!r}.", path=clash)


def unpack_bundle(data: bytes, digest: str, parent: Path) -> Path:
    """Unpack into `parent/digest`, which appears complete or not at all."""
    target = parent / digest
    if target.is_dir():
        return target
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise ObjectCorrupted(location=f"bundle {digest}", expected=digest, actual=actual)
    make_private_directory(parent)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{digest[:12]}-", dir=parent))
    try:
        _extract(data, unfinished)
        unfinished.rename(target)
    except OSError:
        # Another process has unpacked the same bundle, or the disk has failed.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def python_files(tree: Path) -> tuple[str, ...]:
    """Return the Python files below a directory, relative to it, with forward slashes; sorted."""
    found = (path for path in tree.rglob("*.py") if path.is_file() and not path.is_symlink())
    return tuple(sorted(path.relative_to(tree).as_posix() for path in found))


def module_name(file: str, *, source_layout: bool) -> str | None:
    """Return the name that imports a file of a project, or None if no name can."""
    parts = list(PurePosixPath(file).with_suffix("").parts)
    if source_layout and parts[0] == SOURCE_LAYOUT:
        parts = parts[1:]
    if parts and parts[-1] == "__init__":
        parts = parts[:-1]
    if not parts or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return None
    return ".".join(parts)


def _extract(data: bytes, directory: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            path = directory / check_file_path(entry.filename)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(entry))
