"""The review page: logic, data, checks and freshness of a branch, before it is merged.

The data is what the merge would change: the page shows the dry run of the merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from headgate.errors import NotFound
from headgate.files.tree import FilesDifference
from headgate.server.web import dataset_parts, markup
from headgate.server.web.branches_page import standing
from headgate.server.web.page import Page, Visit, freshness_counts, split_page
from headgate.store.documents import Json
from headgate.store.rows import merge_target, preview_merge

if TYPE_CHECKING:
    from headgate.rows.merge import Side


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


# Rows of larger tables are compared, and searched for conflicts, only by the command line.
_ROWS_AT_MOST = 200_000
_UNCHECKED = (
    f"The rows were not checked for conflicts: the table has more than {_ROWS_AT_MOST:,} rows, or "
    "its metadata does not say how many. The merge checks them. To list the conflicts before it: "
    "headgate merge {branch} --into {base} --dry-run"
)
_SAMPLES = 3
_PAGE_DATASETS = 5
_BRANCHES = 100
# Names that only JobSpecs have follow the branches; no name starts with the mark of their cursors.
_LOGIC = "~"
_CONFLICTS = 20


def review_page(visit: Visit) -> Page:
    """Return the review of a branch: logic, and what a merge of it would change."""
    branch = visit.param("branch")
    if not branch:
        return _choose(visit)
    line = visit.store.overview.find_branch(branch)
    base = visit.param("base") or merge_target(visit.store, branch)
    olds, news = visit.store.overview.jobspecs_on((base, branch))
    if line is None and not news and not visit.param("base"):
        message = f"no dataset has a branch {branch!r}, and no JobSpec is on it."
        raise NotFound(message, branch=branch)
    logic = compare_logic(olds, news)
    first = visit.int_param("from") or 0
    changed: list[Side] = []
    if line is not None and branch != base:
        changed = preview_merge(
            visit.store.rows, branch, base, samples=_SAMPLES, most_rows=_ROWS_AT_MOST
        )
    before, after = (
        markup.with_query(markup.REVIEW, branch=branch, base=base, from_=at)
        if 0 <= at < len(changed)
        else None
        for at in (first - _PAGE_DATASETS, first + _PAGE_DATASETS)
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
            "data": _data(changed[first : first + _PAGE_DATASETS], branch, base),
            "more": markup.join(
                markup.steps(("Previous datasets", before), ("More datasets", after))
            ),
            "merge": _merge(branch, base),
        },
    )


def _choose(visit: Visit) -> Page:
    after, found = visit.param("after"), list[tuple[str, str | None, markup.Child, str]]()
    if not after.startswith(_LOGIC):
        _, lines = visit.store.overview.branches(after=after, limit=_BRANCHES + 1)
        found = [(line.name, line.parent, standing(line), line.name) for line in lines]
        after = ""
    if room := _BRANCHES + 1 - len(found):
        names = visit.store.overview.logic_names(after=after.removeprefix(_LOGIC), limit=room)
        found += [(name, None, "none yet: only JobSpecs", _LOGIC + name) for name in names]
    named, steps = split_page(visit, markup.REVIEW, found, _BRANCHES, lambda last: last[-1])
    rows = [
        (
            markup.link(name, markup.with_query(markup.REVIEW, branch=name)),
            parent or visit.primary,
            data,
        )
        for name, parent, data, _ in named
        if name != visit.primary
    ]
    hint = "Make a branch of a dataset, or build on one, and it can be reviewed here."
    body = (
        markup.table(("Branch", "Against", "Data"), rows, label="Branches to review")
        if rows
        else markup.empty("There is no branch beside the primary one yet.", hint)
    )
    return Page(
        title="Review",
        place=markup.REVIEW,
        sections={
            "head": markup.heading("Review", _chooser("", "")),
            "list": markup.join([body, steps]),
        },
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
    visit: Visit, branch: str, changed: Sequence[Side], logic: Sequence[LogicLine]
) -> Markup:
    results = [result for side in changed for result in _checks(side)]
    conflicts = sum(len(side.conflicts) for side in changed)
    data: list[markup.Child] = [f"a merge changes {markup.count(len(changed), 'dataset')} "]
    if conflicts:
        data.append(markup.badge(markup.count(conflicts, "conflict"), "bad"))
    if unchecked := sum(side.unchecked for side in changed):
        data.append(markup.badge(f"{unchecked} not checked for conflicts", "warn"))
    return markup.facts(
        [
            ("Data", data),
            ("Logic", f"{markup.count(len(logic), 'transform')} changed"),
            ("Checks", dataset_parts.checks_badge(results) or "none was made"),
            ("Freshness", freshness_counts(visit, branch)),
        ]
    )


def _checks(side: Side) -> list[Mapping[str, Any]]:
    return list(side.source.provenance.get("checks") or ())


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
        "Logic",
        markup.table(("Change", "Makes", "Transform", "Logic"), rows, label="Logic changes"),
    )


def _hashes(line: LogicLine) -> markup.Child:
    before = markup.code(line.before[:10]) if line.before else "none"
    after = markup.code(line.after[:10]) if line.after else "removed"
    return [before, " → ", after]


def _data(shown: Sequence[Side], branch: str, base: str) -> Markup:
    if not shown:
        note = f"A merge changes no data: {base} has all that {branch} has."
        return markup.card("Data", markup.empty(note))
    return markup.join([_dataset(side, branch, base) for side in shown])


def _dataset(side: Side, branch: str, base: str) -> Markup:
    name, found = side.on_branch.dataset.name, side.difference
    compare = markup.dataset_at(
        name, branch=branch, tab="compare", from_=side.base.id if side.base else None, to=branch
    )
    failed = [result for result in _checks(side) if not result["passed"]]
    beside = [_schema_badge(side), dataset_parts.counts_line(found) if found else None]
    if side.conflicts:
        beside.insert(0, markup.badge(markup.count(len(side.conflicts), "conflict"), "bad"))
    if side.unchecked:
        beside.insert(0, markup.badge("not checked for conflicts", "warn"))
    return markup.card(
        markup.link(str(name), markup.dataset_at(name, branch=branch)),
        markup.tag("p", dataset_parts.why(side.source), f", by {side.source.actor}"),
        markup.tag("p", f"A merge drops it on {base}.") if side.source.version is None else None,
        _conflicts(side.conflicts, name),
        markup.tag("p", _UNCHECKED.format(branch=branch, base=base)) if side.unchecked else None,
        dataset_parts.difference_body(found, f" of {name}") if found else None,
        markup.card("Checks that failed", dataset_parts.check_table(failed, f" of {name}"))
        if failed
        else None,
        markup.tag("p", markup.link("Compare with the merge base", compare)) if side.base else None,
        beside=markup.chips(beside),
    )


def _conflicts(conflicts: Sequence[Json], name: object) -> Markup | None:
    """Return the conflicts with the rows of both sides, and of the merge base."""
    if not conflicts:
        return None
    rows = [
        (
            conflict["reason"],
            *(
                markup.cell(conflict[side]) if side in conflict else ""
                for side in ("base", "source", "target")
            ),
        )
        for conflict in conflicts[:_CONFLICTS]
    ]
    left = len(conflicts) - len(rows)
    return markup.join(
        [
            markup.tag("h3", "Conflicts"),
            markup.tag("p", "They must be resolved on one of the branches before a merge."),
            markup.table(
                ("Conflict", "Merge base", "This branch", "Target"),
                rows,
                label=f"Conflicts of {name}",
            ),
            markup.tag("p", f"and {left} more", class_="hint") if left else None,
        ]
    )


def _schema_badge(side: Side) -> Markup | None:
    if side.difference is None or isinstance(side.difference, FilesDifference):
        return None
    changes = len(dataset_parts.schema_lines(side.difference.schema))
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
