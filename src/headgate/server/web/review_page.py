"""The review page: logic, data, checks and freshness of a branch against its base.

The page is for the time before a merge; it only reads.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from headgate.catalog.database import Connection
from headgate.catalog.jobspecs import PublishedJobSpec, load_jobspecs
from headgate.catalog.overview import list_branch_names, load_branch_name
from headgate.errors import HeadgateError, NotFound
from headgate.model.nouns import DatasetKind
from headgate.server.web import markup
from headgate.server.web.dataset_parts import (
    check_table,
    checks_badge,
    counts_line,
    difference_body,
    schema_lines,
    sign_of,
    why,
)
from headgate.server.web.page import Page, Section, Visit, freshness_counts
from headgate.store.diff import FilesDifference, Sides, compare_sides, list_differing
from headgate.tables.diff import DiffOptions, TableDifference
from headgate.tables.inspect import recorded_row_count

# --- differences of a branch from its base --------------------------------------------------

# Rows of larger tables are compared only on that dataset's own page.
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
    """One dataset that differs; its rows are None if only metadata was compared."""

    sides: Sides
    found: TableDifference | FilesDifference

    @property
    def checks(self) -> list[Mapping[str, Any]]:
        return list(self.sides.after.provenance.get("checks") or []) if self.sides.after else []


def base_of(visit: Visit, branch: str) -> str:
    """Return the default base of a branch: its parent, or else the primary branch."""
    line = visit.store.database.read(lambda c: load_branch_name(c, branch))
    if line is None and not _has_logic(visit, branch):
        told = f"no dataset has a branch {branch!r}, and no JobSpec is on it."
        raise NotFound(told, branch=branch)
    return (line.parent if line else None) or visit.primary


def _has_logic(visit: Visit, branch: str) -> bool:
    return bool(visit.store.database.read(lambda c: load_jobspecs(c, branch=branch)))


def logic_lines(visit: Visit, branch: str, base: str) -> list[LogicLine]:
    """Return the datasets whose logic differs between the branch and its base, by name."""

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
    """Compare the logic of two branches; a dataset without logic on the branch is equal; pure."""
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
    """Return the datasets whose content differs; the branch falls back to its base."""
    if visit.store.database.read(lambda c: load_branch_name(c, branch)) is None:
        return []
    return list_differing(visit.store, base, f"{branch}>{base}")


def review(visit: Visit, sides: Sequence[Sides]) -> list[Reviewed]:
    """Compare each dataset; rows only of tables small enough to read while the visitor waits."""
    return [Reviewed(sides=one, found=_compare(visit, one)) for one in sides]


def _compare(visit: Visit, sides: Sides) -> TableDifference | FilesDifference:
    small = _is_small(visit, sides)
    how = DiffOptions(
        options=visit.store.settings.environ, samples=_SAMPLES if small else 0, reads_files=small
    )
    return compare_sides(visit.store, sides, how)


def _is_small(visit: Visit, sides: Sides) -> bool:
    if sides.dataset.kind is DatasetKind.FILES:
        return True
    tables = visit.store.tables
    counts = [recorded_row_count(tables.read(v.location).metadata) for v in sides.versions if v]
    return all(rows is not None and rows <= _ROWS_AT_MOST for rows in counts)


# --- page -----------------------------------------------------------------------------------

_PAGE_DATASETS = 5
_BRANCHES = 50
_SIGNS = {LogicChange.ADDED: "+", LogicChange.REMOVED: "-", LogicChange.CHANGED: "~"}


def review_page(visit: Visit) -> Page:
    """Return the review of a branch: logic, schemas, samples of rows, checks."""
    branch = visit.asked("branch")
    if not branch:
        return _choose(visit)
    base = visit.asked("base") or base_of(visit, branch)
    first = visit.asked_number("from") or 0
    changed = differing(visit, branch, base)
    shown = review(visit, changed[first : first + _PAGE_DATASETS])
    following = None
    if first + _PAGE_DATASETS < len(changed):
        following = markup.with_query(
            markup.REVIEW, branch=branch, base=base, from_=first + _PAGE_DATASETS
        )
    logic = logic_lines(visit, branch, base)
    title: list[markup.Child] = [
        "Review ",
        markup.tag("span", branch),
        " → ",
        markup.tag("span", base),
    ]
    return Page(
        title=f"Review {branch}",
        place=markup.REVIEW,
        sections=(
            Section(key="head", body=markup.heading(title, _chooser(branch, base))),
            Section(key="summary", body=_summary(visit, branch, base, changed, logic)),
            Section(key="logic", body=_logic(logic, branch)),
            Section(key="data", body=_data(shown, branch, base)),
            Section(key="more", body=markup.join(markup.more(following, "More datasets"))),
            Section(key="merge", body=_merge(branch, base)),
        ),
    )


def _choose(visit: Visit) -> Page:
    lines = visit.store.database.read(lambda c: list_branch_names(c, limit=_BRANCHES))
    own = [line for line in lines if line.parent is not None]
    rows = [
        (
            markup.link(line.name, markup.with_query(markup.REVIEW, branch=line.name)),
            line.parent,
            markup.badge(f"{line.ahead} differ", "warn")
            if line.ahead
            else markup.badge("same content", "quiet"),
        )
        for line in own
    ]
    hint = "Make a branch of a dataset, or build on one, and it can be reviewed here."
    body = (
        markup.table(("Branch", "Against", "Data"), rows, label="Branches to review")
        if rows
        else markup.empty("No branch was made off another yet.", hint)
    )
    return Page(
        title="Review",
        place=markup.REVIEW,
        sections=(
            Section(key="head", body=markup.heading("Review", _chooser("", ""))),
            Section(key="list", body=body),
        ),
    )


def _chooser(branch: str, base: str) -> Markup:
    return markup.form(
        markup.REVIEW,
        markup.field("branch", "Branch", branch),
        markup.field("base", "Against", base, hint="its parent"),
        label="What to review",
        button="Review",
    )


def _summary(
    visit: Visit, branch: str, base: str, changed: Sequence[Sides], logic: Sequence[LogicLine]
) -> Markup:
    checked = [side.after.provenance.get("checks") or [] for side in changed if side.after]
    results = [result for checks in checked for result in checks]
    try:
        freshness = freshness_counts(visit, branch)
    except HeadgateError as error:
        freshness = str(error)
    return markup.facts(
        [
            (
                "Data",
                markup.count(len(changed), "dataset") + " differ" + ("s" * (len(changed) == 1)),
            ),
            (
                "Logic",
                markup.count(len(logic), "transform") + " differ" + ("s" * (len(logic) == 1)),
            ),
            ("Checks", checks_badge({"checks": results}) or "none was made"),
            ("Freshness", freshness),
        ]
    )


def _logic(lines: Sequence[LogicLine], branch: str) -> Markup:
    if not lines:
        return markup.card("Logic", markup.empty("No transform differs."))
    rows = [
        (
            sign_of(_SIGNS[line.change]),
            markup.link(line.dataset, markup.dataset_at(line.dataset, branch=branch, tab="logic")),
            markup.code(line.title),
            _hashes(line),
        )
        for line in lines
    ]
    return markup.card(
        "Logic", markup.table(("", "Makes", "Transform", "Logic"), rows, label="Logic changes")
    )


def _hashes(line: LogicLine) -> markup.Child:
    before = markup.code(line.before[:10]) if line.before else "none"
    after = markup.code(line.after[:10]) if line.after else "removed"
    return [before, " → ", after]


def _data(shown: Sequence[Reviewed], branch: str, base: str) -> Markup:
    if not shown:
        return markup.card(
            "Data", markup.empty(f"Both show the same: {branch} changes no content.")
        )
    return markup.join([_dataset(one, branch, base) for one in shown])


def _dataset(one: Reviewed, branch: str, base: str) -> Markup:
    sides, name = one.sides, one.sides.dataset.name
    compare = markup.dataset_at(name, branch=branch, tab="compare", from_=base, to=branch)
    made = markup.tag("p", why(sides.after), f", by {sides.after.actor}") if sides.after else None
    gone = markup.tag("p", "It is not shown on the branch.") if sides.after is None else None
    failed = [result for result in one.checks if not result["passed"]]
    return markup.card(
        markup.link(str(name), markup.dataset_at(name, branch=branch)),
        made,
        gone,
        difference_body(one.found),
        markup.card("Checks that failed", check_table(failed)) if failed else None,
        markup.tag("p", markup.link("Compare in full", compare)),
        beside=markup.tag("span", _schema_badge(one), counts_line(one.found), class_="chips"),
    )


def _schema_badge(one: Reviewed) -> Markup | None:
    if isinstance(one.found, FilesDifference):
        return None
    changes = len(schema_lines(one.found.schema))
    return markup.badge(markup.count(changes, "schema change"), "warn") if changes else None


def _merge(branch: str, base: str) -> Markup:
    return markup.card(
        "When it is good",
        markup.tag(
            "p",
            "Logic is merged in Git; a build on the base then takes over what was computed here, "
            "without computing it again. Data that no transform makes is merged by key:",
        ),
        markup.command(f"headgate merge {branch} --into {base} --dry-run"),
    )
