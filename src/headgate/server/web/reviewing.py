"""What a branch would bring to its base: logic, data, checks, freshness; read, never written."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.catalog.branch_names import load_branch_name
from headgate.catalog.database import Connection
from headgate.catalog.jobspecs import PublishedJobSpec, load_jobspecs
from headgate.errors import NotFound
from headgate.handles.comparing import FilesDifference, compare_sides
from headgate.handles.reading import Sides, list_differing
from headgate.model.nouns import DatasetKind
from headgate.server.web.visiting import Visit
from headgate.tables.comparing import Comparing, TableDifference
from headgate.tables.reading import recorded_row_count

# More rows than these are compared only when somebody asks for that dataset alone.
_ROWS_AT_MOST = 200_000
_SAMPLES = 3


class LogicChange(enum.StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, kw_only=True)
class LogicLine:
    """A dataset whose published logic differs between the branch and its base."""

    dataset: str
    change: LogicChange
    title: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One dataset that differs; rows are None where only metadata was looked at."""

    sides: Sides
    found: TableDifference | FilesDifference

    @property
    def checks(self) -> list[Mapping[str, Any]]:
        return list(self.sides.after.provenance.get("checks") or []) if self.sides.after else []


def base_of(visit: Visit, branch: str) -> str:
    """What a branch is reviewed against unless told otherwise: its parent, else the primary."""
    line = visit.store.database.read(lambda c: load_branch_name(c, branch))
    if line is None and not _has_logic(visit, branch):
        told = f"no dataset has a branch {branch!r}, and no JobSpec is on it."
        raise NotFound(told, branch=branch)
    return (line.parent if line else None) or visit.primary


def _has_logic(visit: Visit, branch: str) -> bool:
    return bool(visit.store.database.read(lambda c: load_jobspecs(c, branch=branch)))


def logic_lines(visit: Visit, branch: str, base: str) -> list[LogicLine]:
    """Datasets that are made by other logic on the branch than on its base, by name."""

    def read(connection: Connection) -> list[LogicLine]:
        sides = (_by_dataset(connection, name) for name in (base, branch))
        return compare_logic(*sides)

    return visit.store.database.read(read)


def _by_dataset(connection: Connection, branch: str) -> dict[str, PublishedJobSpec]:
    found = load_jobspecs(connection, branch=branch)
    return {str(name): spec for spec in found for name in _outputs(spec)}


def _outputs(published: PublishedJobSpec) -> list[str]:
    if published.removed:
        return list(published.body["outputs"])
    return [output["dataset"] for output in published.body["jobspec"]["declaration"]["outputs"]]


def compare_logic(
    base: Mapping[str, PublishedJobSpec], branch: Mapping[str, PublishedJobSpec]
) -> list[LogicLine]:
    """A dataset without logic of its own on the branch keeps its base's; pure."""
    lines: list[LogicLine] = []
    for dataset in sorted(branch):
        here, there = branch[dataset], base.get(dataset)
        old = _hash(there)
        new = _hash(here)
        if old == new:
            continue
        named = there if new is None and there is not None else here
        lines.append(
            LogicLine(
                dataset=dataset,
                change=_change(old, new),
                title=_title(named),
                before=old,
                after=new,
            )
        )
    return lines


def _change(old: str | None, new: str | None) -> LogicChange:
    if old is None:
        return LogicChange.ADDED
    return LogicChange.REMOVED if new is None else LogicChange.CHANGED


def _hash(published: PublishedJobSpec | None) -> str | None:
    if published is None or published.removed:
        return None
    return str(published.body["jobspec"]["logic_hash"])


def _title(published: PublishedJobSpec) -> str:
    declared = published.body["jobspec"]["declaration"]
    return f"{declared['module']}.{declared['function']}"


def differing(visit: Visit, branch: str, base: str) -> list[Sides]:
    """Datasets whose content differs; where the branch has none of its own, it shows its base's."""
    if visit.store.database.read(lambda c: load_branch_name(c, branch)) is None:
        return []
    return list_differing(visit.store, base, f"{branch}>{base}")


def review(visit: Visit, sides: Sequence[Sides]) -> list[Reviewed]:
    """How each differs: rows too where they are few enough to be read while somebody waits."""
    return [Reviewed(sides=one, found=_compare(visit, one)) for one in sides]


def _compare(visit: Visit, sides: Sides) -> TableDifference | FilesDifference:
    small = _is_small(visit, sides)
    how = Comparing(
        options=visit.store.settings.environ, samples=_SAMPLES if small else 0, reads_files=small
    )
    return compare_sides(visit.store, sides, how)


def _is_small(visit: Visit, sides: Sides) -> bool:
    if sides.dataset.kind is DatasetKind.FILES:
        return True
    tables = visit.store.tables
    counts = [recorded_row_count(tables.read(v.location).metadata) for v in sides.versions if v]
    return all(rows is not None and rows <= _ROWS_AT_MOST for rows in counts)
