"""What a task may demand of its workspace: files, directories, globs, or a function's verdict."""

from __future__ import annotations

import enum
import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from headgate.errors import WorkspaceCheckFailed
from headgate.transforms.where import Place, calling_place

# A function of the workspace: False, a sentence, or an exception says that it is not as it must be.
CheckFunction = Callable[[Path], object]


class CheckKind(enum.StrEnum):
    FILE = "require_file"
    DIRECTORY = "require_dir"
    GLOB = "require_glob"
    NO_GLOB = "forbid_glob"


class Phase(enum.StrEnum):
    PRE = "pre"
    POST = "post"


@dataclass(frozen=True, kw_only=True)
class PathCheck:
    """One demand on the paths of a workspace."""

    kind: CheckKind
    path: str
    min_count: int = 1
    max_count: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.path!r})"


Check = PathCheck | CheckFunction


def require_file(path: str | PurePath) -> PathCheck:
    """The workspace has a file at this path."""
    return PathCheck(kind=CheckKind.FILE, path=_relative(path, calling_place()))


def require_dir(path: str | PurePath) -> PathCheck:
    """The workspace has a directory at this path."""
    return PathCheck(kind=CheckKind.DIRECTORY, path=_relative(path, calling_place()))


def require_glob(
    pattern: str | PurePath, min_count: int = 1, max_count: int | None = None
) -> PathCheck:
    """So many files match the pattern."""
    place = calling_place()
    for what, count in (("min_count", min_count), ("max_count", max_count)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise place.refuse(f"{what} of require_glob is a whole number, not {count!r}")
    if min_count < 0 or (max_count is not None and max_count < min_count):
        raise place.refuse(
            f"require_glob needs 0 <= min_count <= max_count, not {min_count} and {max_count}"
        )
    return PathCheck(
        kind=CheckKind.GLOB,
        path=_relative(pattern, place),
        min_count=min_count,
        max_count=max_count,
    )


def forbid_glob(pattern: str | PurePath) -> PathCheck:
    """No file matches the pattern."""
    return PathCheck(kind=CheckKind.NO_GLOB, path=_relative(pattern, calling_place()))


def checked(checks: object, what: str, place: Place) -> tuple[Check, ...]:
    """The checks of a declaration, each of which must be one."""
    if isinstance(checks, str) or not isinstance(checks, Sequence):
        raise place.refuse(f"{what} is a list of checks, not {checks!r}")
    for check in checks:
        if not isinstance(check, PathCheck) and not callable(check):
            raise place.refuse(f"{what} has {check!r}, which is neither a check nor a function")
    return tuple(checks)


def check_workspace(checks: Sequence[Check], workspace: Path, phase: Phase) -> None:
    """Raises for the first check, in their order, that the workspace does not pass."""
    for check in checks:
        if isinstance(check, PathCheck):
            name, reason = str(check), _look(check, workspace)
        else:
            name, reason = getattr(check, "__name__", repr(check)), _ask(check, workspace)
        if reason is not None:
            raise WorkspaceCheckFailed(phase=phase, check=name, reason=reason)


def _look(check: PathCheck, workspace: Path) -> str | None:
    if check.kind is CheckKind.FILE:
        return None if _is_file(workspace / check.path) else f"there is no file {check.path!r}"
    if check.kind is CheckKind.DIRECTORY:
        found = workspace / check.path
        there = found.is_dir() and not found.is_symlink()
        return None if there else f"there is no directory {check.path!r}"
    matching = (path for path in workspace.glob(check.path) if _is_file(path))
    if check.kind is CheckKind.NO_GLOB:
        first = next(matching, None)
        return None if first is None else f"{str(first.relative_to(workspace))!r} matches it"
    enough = check.min_count if check.max_count is None else check.max_count + 1
    count = sum(1 for _ in itertools.islice(matching, enough))
    if count < check.min_count:
        return f"{count} files match, at least {check.min_count} must"
    if check.max_count is not None and count > check.max_count:
        return f"more than {check.max_count} files match, at most {check.max_count} may"
    return None


def _ask(check: CheckFunction, workspace: Path) -> str | None:
    try:
        verdict = check(workspace)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f": {error}" if str(error) else ""
        return f"it raised {type(error).__name__}{said} ({last.filename}:{last.lineno})"
    if isinstance(verdict, str):
        return verdict
    return "it returned False" if verdict is False else None


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _relative(path: str | PurePath, place: Place) -> str:
    """A path in the workspace, with forward slashes; everything else is refused where it stands."""
    if isinstance(path, PurePath):
        drive, text = path.drive, path.as_posix()
    elif isinstance(path, str):
        drive, text = "", path
    else:
        raise place.refuse(f"a check's path is text or a path, not {path!r}")
    parts = text.split("/")
    if drive or text.startswith("/") or "\\" in text or (len(parts[0]) == 2 and parts[0][1] == ":"):
        raise place.refuse(f"{text!r} must lie in the workspace: give a relative path with slashes")
    if any(part in {"", ".", ".."} for part in parts):
        raise place.refuse(f"{text!r} has an empty, '.' or '..' part")
    return text
