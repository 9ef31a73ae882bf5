"""The review page: logic, data, checks and freshness of a branch against its base.

The page is for the time before a merge; it only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from headgate.errors import NotFound
from headgate.model.nouns import DatasetKind
from headgate.server.web import dataset_parts, markup
from headgate.server.web.page import Page, Visit, freshness_counts
from headgate.store.diff import FilesDifference, Sides, compare_sides, list_differing
from headgate.store.documents import Json
from headgate.tables.diff import DiffOptions, TableDifference
from headgate.tables.inspect import recorded_row_count

# --- differences of a branch from its base --------------------------------------------------

# Rows of larger tables are compared only on that dataset's own page.
_ROWS_AT_MOST = 200_000
_SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class LogicLine:
    """A dataset whose published logic differs between the branch and its base."""

    dataset: str
    title: str
    # Hashes; None on a side without logic.
    before: str | None
    after: str | None

    @property
    def sign(self) -> str:
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One dataset that differs; its rows are None if only metadata was compared."""

    sides: Sides
    found: TableDifference | FilesDifference


def compare_logic(base: Iterable[Json], branch: Iterable[Json]) -> list[LogicLine]:
    """Compare the JobSpecs of two branches, by the names of the datasets that they produce; pure.

    A dataset without a JobSpec on the branch is equal.
    """
    olds, news = (
        {name: spec for spec in side for name in spec["outputs"]} for side in (base, branch)
    )
    lines: list[LogicLine] = []
    for dataset in sorted(news):
        # The document of a removal has no hash.
        here, there = news[dataset], olds.get(dataset) or {}
        old, new = there.get("logic_hash"), here.get("logic_hash")
        if old != new:
            title = (there if new is None else here)["entry"]
            lines.append(LogicLine(dataset=dataset, title=title, before=old, after=new))
    return lines


def review(visit: Visit, sides: Sides) -> Reviewed:
    """Compare a dataset; rows only of a table small enough to read while the visitor waits."""
    small = _is_small(visit, sides)
    how = DiffOptions(
        options=visit.store.settings.environ, samples=_SAMPLES if small else 0, reads_files=small
    )
    return Reviewed(sides=sides, found=compare_sides(visit.store, sides, how))


def _is_small(visit: Visit, sides: Sides) -> bool:
    if sides.dataset.kind is DatasetKind.FILES:
        return True
    tables = visit.store.tables
    counts = [recorded_row_count(tables.read(v.location).metadata) for v in sides.versions if v]
    return all(rows is not None and rows <= _ROWS_AT_MOST for rows in counts)


# --- page -----------------------------------------------------------------------------------

_PAGE_DATASETS = 5
_BRANCHES = 50


def review_page(visit: Visit) -> Page:
    """Return the review of a branch: logic, schemas, samples of rows, checks."""
    branch = visit.param("branch")
    if not branch:
        return _choose(visit)
    line = visit.store.overview.find_branch(branch)
    base = visit.param("base") or (line and line.parent) or visit.primary
    olds, news = visit.store.overview.jobspecs_on((base, branch))
    if line is None and not news and not visit.param("base"):
        message = f"no dataset has a branch {branch!r}, and no JobSpec is on it."
        raise NotFound(message, branch=branch)
    logic = compare_logic(olds, news)
    first = visit.int_param("from") or 0
    # The branch falls back to its base.
    changed = list_differing(visit.store, base, f"{branch}>{base}") if line else []
    shown = [review(visit, sides) for sides in changed[first : first + _PAGE_DATASETS]]
    following = None
    if first + _PAGE_DATASETS < len(changed):
        following = markup.with_query(
            markup.REVIEW, branch=branch, base=base, from_=first + _PAGE_DATASETS
        )
    title: list[markup.Child] = [
        "Review ",
        markup.tag("span", branch),
        " → ",
        markup.tag("span", base),
    ]
    return Page(
        title=f"Review {branch}",
        place=markup.REVIEW,
        sections={
            "head": markup.heading(title, _chooser(branch, base)),
            "summary": _summary(visit, branch, changed, logic),
            "logic": _logic(logic, branch),
            "data": _data(shown, branch, base),
            "more": markup.join(markup.more(following, "More datasets")),
            "merge": _merge(branch, base),
        },
    )


def _choose(visit: Visit) -> Page:
    _, lines = visit.store.overview.branches(limit=_BRANCHES)
    rows = [
        (
            markup.link(line.name, markup.with_query(markup.REVIEW, branch=line.name)),
            line.parent,
            markup.badge(f"{line.ahead} differ", "warn")
            if line.ahead
            else markup.badge("same content", "quiet"),
        )
        for line in lines
        if line.parent is not None
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
        sections={"head": markup.heading("Review", _chooser("", "")), "list": body},
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
    visit: Visit, branch: str, changed: Sequence[Sides], logic: Sequence[LogicLine]
) -> Markup:
    results = [result for sides in changed for result in _checks(sides)]
    return markup.facts(
        [
            ("Data", _differ(len(changed), "dataset")),
            ("Logic", _differ(len(logic), "transform")),
            ("Checks", dataset_parts.checks_badge(results) or "none was made"),
            ("Freshness", freshness_counts(visit, branch)),
        ]
    )


def _checks(sides: Sides) -> list[Mapping[str, Any]]:
    return list(sides.after.provenance.get("checks") or ()) if sides.after else []


def _differ(number: int, noun: str) -> str:
    return f"{markup.count(number, noun)} {'differs' if number == 1 else 'differ'}"


def _logic(lines: Sequence[LogicLine], branch: str) -> Markup:
    if not lines:
        return markup.card("Logic", markup.empty("No transform differs."))
    rows = [
        (
            dataset_parts.sign_of(line.sign),
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
    made = (
        markup.tag("p", dataset_parts.why(sides.after), f", by {sides.after.actor}")
        if sides.after
        else None
    )
    gone = markup.tag("p", "It is not shown on the branch.") if sides.after is None else None
    failed = [result for result in _checks(sides) if not result["passed"]]
    return markup.card(
        markup.link(str(name), markup.dataset_at(name, branch=branch)),
        made,
        gone,
        dataset_parts.difference_body(one.found),
        markup.card("Checks that failed", dataset_parts.check_table(failed)) if failed else None,
        markup.tag("p", markup.link("Compare in full", compare)),
        beside=markup.chips(_schema_badge(one), dataset_parts.counts_line(one.found)),
    )


def _schema_badge(one: Reviewed) -> Markup | None:
    if isinstance(one.found, FilesDifference):
        return None
    changes = len(dataset_parts.schema_lines(one.found.schema))
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
