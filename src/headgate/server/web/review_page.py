"""Review: a branch against its base, the page to look at before a merge."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.catalog.branch_names import list_branch_names
from headgate.errors import HeadgateError
from headgate.handles.comparing import FilesDifference
from headgate.handles.reading import Sides
from headgate.server.web import addresses
from headgate.server.web.comparing import counts_line, difference_body, schema_lines, sign_of
from headgate.server.web.freshness import freshness_counts
from headgate.server.web.histories import check_table, checks_badge, why
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    card,
    code,
    command,
    count,
    empty,
    facts,
    field,
    form,
    heading,
    link,
    more,
    table,
)
from headgate.server.web.reviewing import (
    LogicChange,
    LogicLine,
    Reviewed,
    base_of,
    differing,
    logic_lines,
    review,
)
from headgate.server.web.visiting import Page, Section, Visit

_PAGE_DATASETS = 5
_BRANCHES = 50
_SIGNS = {LogicChange.ADDED: "+", LogicChange.REMOVED: "-", LogicChange.CHANGED: "~"}


def review_page(visit: Visit) -> Page:
    """What a branch would bring: logic, schemas, rows with samples, checks."""
    branch = visit.asked("branch")
    if not branch:
        return _choose(visit)
    base = visit.asked("base") or base_of(visit, branch)
    first = visit.asked_number("from") or 0
    changed = differing(visit, branch, base)
    shown = review(visit, changed[first : first + _PAGE_DATASETS])
    following = None
    if first + _PAGE_DATASETS < len(changed):
        following = addresses.with_query(
            addresses.REVIEW, branch=branch, base=base, from_=first + _PAGE_DATASETS
        )
    logic = logic_lines(visit, branch, base)
    title: list[Child] = ["Review ", tag("span", branch), " → ", tag("span", base)]
    return Page(
        title=f"Review {branch}",
        place=addresses.REVIEW,
        sections=(
            Section(key="head", body=heading(title, _chooser(branch, base))),
            Section(key="summary", body=_summary(visit, branch, base, changed, logic)),
            Section(key="logic", body=_logic(logic, branch)),
            Section(key="data", body=_data(shown, branch, base)),
            Section(key="more", body=join(more(following, "More datasets"))),
            Section(key="merge", body=_merge(branch, base)),
        ),
    )


def _choose(visit: Visit) -> Page:
    lines = visit.store.database.read(lambda c: list_branch_names(c, limit=_BRANCHES))
    own = [line for line in lines if line.parent is not None]
    rows = [
        (
            link(line.name, addresses.with_query(addresses.REVIEW, branch=line.name)),
            line.parent,
            badge(f"{line.ahead} differ", "warn") if line.ahead else badge("same content", "quiet"),
        )
        for line in own
    ]
    hint = "Make a branch of a dataset, or build on one, and it can be reviewed here."
    body = (
        table(("Branch", "Against", "Data"), rows, label="Branches to review")
        if rows
        else empty("No branch was made off another yet.", hint)
    )
    return Page(
        title="Review",
        place=addresses.REVIEW,
        sections=(
            Section(key="head", body=heading("Review", _chooser("", ""))),
            Section(key="list", body=body),
        ),
    )


def _chooser(branch: str, base: str) -> Markup:
    return form(
        addresses.REVIEW,
        field("branch", "Branch", branch),
        field("base", "Against", base, hint="its parent"),
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
    return facts(
        [
            ("Data", count(len(changed), "dataset") + " differ" + ("s" * (len(changed) == 1))),
            ("Logic", count(len(logic), "transform") + " differ" + ("s" * (len(logic) == 1))),
            ("Checks", checks_badge({"checks": results}) or "none was made"),
            ("Freshness", freshness),
        ]
    )


def _logic(lines: Sequence[LogicLine], branch: str) -> Markup:
    if not lines:
        return card("Logic", empty("No transform differs."))
    rows = [
        (
            sign_of(_SIGNS[line.change]),
            link(line.dataset, addresses.dataset_at(line.dataset, branch=branch, tab="logic")),
            code(line.title),
            _hashes(line),
        )
        for line in lines
    ]
    return card("Logic", table(("", "Makes", "Transform", "Logic"), rows, label="Logic changes"))


def _hashes(line: LogicLine) -> Child:
    before = code(line.before[:10]) if line.before else "none"
    after = code(line.after[:10]) if line.after else "removed"
    return [before, " → ", after]


def _data(shown: Sequence[Reviewed], branch: str, base: str) -> Markup:
    if not shown:
        return card("Data", empty(f"Both show the same: {branch} changes no content."))
    return join([_dataset(one, branch, base) for one in shown])


def _dataset(one: Reviewed, branch: str, base: str) -> Markup:
    sides, name = one.sides, one.sides.dataset.name
    compare = addresses.dataset_at(name, branch=branch, tab="compare", from_=base, to=branch)
    made = tag("p", why(sides.after), f", by {sides.after.actor}") if sides.after else None
    gone = tag("p", "It is not shown on the branch.") if sides.after is None else None
    failed = [result for result in one.checks if not result["passed"]]
    return card(
        link(str(name), addresses.dataset_at(name, branch=branch)),
        made,
        gone,
        difference_body(one.found),
        card("Checks that failed", check_table(failed)) if failed else None,
        tag("p", link("Compare in full", compare)),
        beside=tag("span", _schema_badge(one), counts_line(one.found), class_="chips"),
    )


def _schema_badge(one: Reviewed) -> Markup | None:
    if isinstance(one.found, FilesDifference):
        return None
    changes = len(schema_lines(one.found.schema))
    return badge(count(changes, "schema change"), "warn") if changes else None


def _merge(branch: str, base: str) -> Markup:
    return card(
        "When it is good",
        tag(
            "p",
            "Logic is merged in Git; a build on the base then takes over what was computed here, "
            "without computing it again. Data that no transform makes is merged by key:",
        ),
        command(f"headgate merge {branch} --into {base} --dry-run"),
    )
