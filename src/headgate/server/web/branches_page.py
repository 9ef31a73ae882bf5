"""The branches page: the tree of branch names, and one branch compared with its parent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headgate.catalog.branches import list_protected
from headgate.catalog.database import Connection
from headgate.catalog.overview import (
    BranchNameLine,
    DifferingDataset,
    count_branch_names,
    list_branch_names,
    list_differing_datasets,
    load_branch_name,
)
from headgate.errors import HeadgateError, NotFound
from headgate.model.names import parse_dataset_name
from headgate.server.web import markup
from headgate.server.web.page import Page, Section, Visit, freshness_counts

_PAGE_ROWS = 100
_DIFFERING_ROWS = 50


def branches_page(visit: Visit) -> Page:
    """Return the tree of all branch names, or one branch with the datasets that differ."""
    name = visit.asked("branch")
    return _one(visit, name) if name else _all(visit)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A line of the tree with its depth."""

    depth: int
    line: BranchNameLine


def place_in_tree(lines: Iterable[BranchNameLine]) -> list[Placed]:
    """Place parents before children; a branch whose parent is not shown has depth 0; pure."""
    known = {line.name: line for line in lines}
    below: dict[str | None, list[BranchNameLine]] = {}
    for line in known.values():
        parent = line.parent if line.parent in known and line.parent != line.name else None
        below.setdefault(parent, []).append(line)
    placed: list[Placed] = []
    waiting = [Placed(depth=0, line=line) for line in reversed(below.get(None, []))]
    seen: set[str] = set()
    while waiting:
        here = waiting.pop()
        if here.line.name in seen:
            continue
        seen.add(here.line.name)
        placed.append(here)
        children = below.get(here.line.name, [])
        waiting += [Placed(depth=here.depth + 1, line=child) for child in reversed(children)]
    # Two names that are each other's parent, on different datasets, have no place in the tree.
    placed += [Placed(depth=0, line=known[name]) for name in known if name not in seen]
    return placed


def _all(visit: Visit) -> Page:
    search, after = visit.asked("search"), visit.asked("after")

    def read(connection: Connection) -> tuple[int, list[BranchNameLine], list[str]]:
        lines = list_branch_names(
            connection, search=search, after=after or None, limit=_PAGE_ROWS + 1
        )
        return count_branch_names(connection, search), lines, list_protected(connection)

    total, lines, protected = visit.store.database.read(read)
    shown = lines[:_PAGE_ROWS]
    following = None
    if len(lines) > _PAGE_ROWS:
        following = markup.with_query(markup.BRANCHES, search=search, after=shown[-1].name)
    body = _tree(visit, place_in_tree(shown), protected) if shown else _nothing(search)
    search_form = markup.form(
        markup.BRANCHES, markup.field("search", "Name contains", search), label="Find branches"
    )
    beside = markup.tag("p", markup.count(total, "branch"), class_="beside", role="status")
    return Page(
        title="Branches",
        place=markup.BRANCHES,
        sections=(
            Section(key="head", body=markup.heading("Branches", beside, search_form)),
            Section(key="tree", body=markup.join([body, markup.more(following, "Next page")])),
        ),
    )


def _nothing(search: str) -> Markup:
    if search:
        return markup.empty(f"No branch has “{search}” in its name.")
    hint = markup.command("headgate dataset create sales.orders")
    return markup.empty("There is no branch yet: the first dataset brings one.", hint)


def _tree(visit: Visit, placed: Sequence[Placed], protected: Sequence[str]) -> Markup:
    rows = [
        (
            _name(here, here.line.name in protected),
            markup.count(here.line.dataset_count, "dataset"),
            _standing(here.line),
            markup.badge(f"{here.line.open} open", "busy") if here.line.open else "",
            markup.moment(here.line.last_at, visit.now),
            here.line.last_actor or "",
        )
        for here in placed
    ]
    headings = ("Branch", "On", "Against its parent", "", "Published", "By")
    return markup.table(headings, rows, label="Branches")


def _name(here: Placed, is_protected: bool) -> Markup:
    line = here.line
    off = [f"off {line.parent}"] if line.parent and here.depth == 0 else []
    off += [f"elsewhere off {', '.join(line.other_parents)}"] if line.other_parents else []
    return markup.tag(
        "span",
        markup.link(line.name, markup.branch_at(line.name)),
        markup.badge("protected", "taken") if is_protected else None,
        markup.tag("span", "; ".join(off), class_="faint") if off else None,
        class_="named branch",
        style=f"--depth: {here.depth}",
    )


def _standing(line: BranchNameLine) -> markup.Child:
    if line.parent is None:
        return markup.tag("span", "a root", class_="faint")
    if not line.ahead:
        return markup.tag("span", "same content", class_="faint")
    parts: list[markup.Child] = [markup.badge(f"{line.ahead} differ", "warn")]
    if line.behind:
        told = "its parent was published on since"
        parts.append(markup.badge(f"{line.behind} behind", "quiet", title=told))
    return markup.tag("span", parts, class_="chips")


def _one(visit: Visit, name: str) -> Page:
    after = visit.asked("after")
    behind = parse_dataset_name(after) if after else None

    def read(
        connection: Connection,
    ) -> tuple[BranchNameLine | None, list[DifferingDataset], bool]:
        return (
            load_branch_name(connection, name),
            list_differing_datasets(connection, name, after=behind, limit=_DIFFERING_ROWS + 1),
            name in list_protected(connection),
        )

    line, found, is_protected = visit.store.database.read(read)
    if line is None:
        raise NotFound(f"no dataset has a branch {name!r}.", branch=name)
    title = [name, markup.badge("protected", "taken") if is_protected else None]
    review = markup.link(
        "Review", markup.with_query(markup.REVIEW, branch=name), class_="button primary"
    )
    buttons: list[markup.Child] = [_lineage_link(visit, name)]
    if line.parent is not None:
        buttons.insert(0, review)
    return Page(
        title=f"Branch {name}",
        place=markup.BRANCHES,
        sections=(
            Section(
                key="head", body=markup.heading(title, markup.tag("div", buttons, class_="buttons"))
            ),
            Section(key="facts", body=markup.facts(_facts(visit, line))),
            Section(key="differing", body=_differing(visit, line, found)),
        ),
    )


def _lineage_link(visit: Visit, name: str) -> Markup:
    return markup.link("Lineage", markup.with_query(markup.LINEAGE, branch=name), class_="button")


def _facts(visit: Visit, line: BranchNameLine) -> list[tuple[str, markup.Child]]:
    parent = (
        markup.link(line.parent, markup.branch_at(line.parent)) if line.parent else "none: a root"
    )
    pairs: list[tuple[str, markup.Child]] = [
        ("Parent", parent),
        ("On", markup.count(line.dataset_count, "dataset")),
        ("Against its parent", _standing(line)),
        (
            "Published",
            [markup.moment(line.last_at, visit.now), f" by {line.last_actor or 'nobody'}"],
        ),
    ]
    try:
        pairs.append(("Freshness", freshness_counts(visit, line.name)))
    except HeadgateError as error:
        pairs.append(("Freshness", str(error)))
    return pairs


def _differing(visit: Visit, line: BranchNameLine, found: list[DifferingDataset]) -> Markup:
    if line.parent is None:
        hint = markup.command(f"headgate branch create DATASET NAME --from {line.name}")
        return markup.empty("A root has no parent to differ from.", hint)
    if not found:
        return markup.empty(f"It shows the same as {line.parent}, on every dataset.")
    rows = [
        (
            markup.link(str(d.dataset), markup.dataset_at(d.dataset, branch=line.name)),
            markup.badge(d.kind, "kind"),
            markup.badge("behind", "quiet") if d.is_behind else markup.badge("ahead", "warn"),
            markup.moment(d.at, visit.now),
            d.actor or "",
            markup.link("Compare", _compare(d, line.name)),
        )
        for d in found[:_DIFFERING_ROWS]
    ]
    following = None
    if len(found) > _DIFFERING_ROWS:
        last = str(found[_DIFFERING_ROWS - 1].dataset)
        following = markup.with_query(markup.BRANCHES, branch=line.name, after=last)
    headings = ("Dataset", "Kind", "", "Published here", "By", "")
    drawn = markup.table(headings, rows, label="Datasets that differ")
    return markup.card("Differs from its parent", drawn, markup.more(following, "Next page"))


def _compare(d: DifferingDataset, branch: str) -> str:
    return markup.dataset_at(d.dataset, branch=branch, tab="compare", from_=d.parent, to=branch)
