"""The branches page: the tree of branch names, and one branch compared with its parent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headgate.model.nouns import BranchNameLine, DifferingDataset
from headgate.server.web import markup
from headgate.server.web.page import Page, Visit, freshness_counts, split_page

_PAGE_ROWS = 100
_DIFFERING_ROWS = 50


def branches_page(visit: Visit) -> Page:
    """Return the tree of all branch names, or one branch with the datasets that differ."""
    name = visit.param("branch")
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
    search = visit.param("search")
    total, found = visit.store.overview.branches(
        search=search, after=visit.param("after"), limit=_PAGE_ROWS + 1
    )
    lines, steps = split_page(visit, markup.BRANCHES, found, _PAGE_ROWS, lambda last: last.name)
    body = _tree(visit, place_in_tree(lines)) if lines else _nothing(search)
    search_form = markup.form(
        markup.BRANCHES, markup.field("search", "Name contains", search), label="Find branches"
    )
    beside = markup.tag("p", markup.count(total, "branch"), class_="beside", role="status")
    return Page(
        title="Branches",
        place=markup.BRANCHES,
        sections={
            "head": markup.heading("Branches", beside, search_form),
            "tree": markup.join([body, steps]),
        },
    )


def _nothing(search: str) -> Markup:
    if search:
        return markup.empty(f"No branch has “{search}” in its name.")
    hint = markup.command("headgate dataset create sales.orders")
    return markup.empty("There is no branch yet: the first dataset brings one.", hint)


def _tree(visit: Visit, placed: Sequence[Placed]) -> Markup:
    rows = [
        (
            _name(here),
            markup.count(here.line.dataset_count, "dataset"),
            standing(here.line),
            markup.badge(f"{here.line.open} open", "busy") if here.line.open else "",
            markup.moment(here.line.last.at if here.line.last else None, visit.now),
            here.line.last.actor if here.line.last else "",
        )
        for here in placed
    ]
    headings = ("Branch", "On", "Against its parent", "Transactions", "Published", "By")
    return markup.table(headings, rows, label="Branches")


def _name(here: Placed) -> Markup:
    line = here.line
    off = [f"off {line.parent}"] if line.parent and here.depth == 0 else []
    off += [f"elsewhere off {', '.join(line.other_parents)}"] if line.other_parents else []
    return markup.tag(
        "span",
        markup.link(line.name, markup.branch_at(line.name)),
        _protected(line),
        markup.tag("span", "; ".join(off), class_="faint") if off else None,
        class_="named branch",
        style=f"--depth: {here.depth}",
    )


def _protected(line: BranchNameLine) -> Markup | None:
    if not line.protected:
        return None
    extent = "" if "*" in line.protected else f": {', '.join(line.protected)}"
    return markup.badge(f"protected{extent}", "taken")


def standing(line: BranchNameLine) -> Markup:
    """Return the comparison of contents with the parent; a review shows what a merge changes."""
    if line.parent is None:
        return markup.tag("span", "a root", class_="faint")
    if not line.differing:
        return markup.tag("span", "same content", class_="faint")
    return markup.badge(f"{line.differing} with other content", "warn")


def _one(visit: Visit, name: str) -> Page:
    line, found = visit.store.overview.branch(
        name, after=visit.param("after"), limit=_DIFFERING_ROWS + 1
    )
    lineage = markup.with_query(markup.LINEAGE, branch=name)
    buttons = [markup.link("Lineage", lineage, class_="button")]
    if line.parent is not None:
        review = markup.with_query(markup.REVIEW, branch=name)
        buttons.insert(0, markup.link("Review", review, class_="button primary"))
    return Page(
        title=f"Branch {name}",
        place=markup.BRANCHES,
        sections={
            "head": markup.heading(
                [name, _protected(line)], markup.tag("div", buttons, class_="buttons")
            ),
            "facts": markup.facts(_facts(visit, line)),
            "differing": _differing(visit, line, found),
        },
    )


def _facts(visit: Visit, line: BranchNameLine) -> list[tuple[str, markup.Child]]:
    parent = (
        markup.link(line.parent, markup.branch_at(line.parent))
        if line.parent
        else "none (root branch)"
    )
    last = line.last
    published = markup.moment(last.at if last else None, visit.now)
    return [
        ("Parent", parent),
        ("On", markup.count(line.dataset_count, "dataset")),
        ("Against its parent", standing(line)),
        ("Published", [published, f" by {last.actor}" if last else ""]),
        ("Freshness", freshness_counts(visit, line.name)),
    ]


def _differing(visit: Visit, line: BranchNameLine, found: list[DifferingDataset]) -> Markup:
    if line.parent is None:
        hint = markup.command(f"headgate branch create DATASET NAME --from {line.name}")
        return markup.empty("A root has no parent to differ from.", hint)
    if not found:
        return markup.empty(f"It shows the same as {line.parent}, on every dataset.")
    shown, steps = split_page(
        visit, markup.BRANCHES, found, _DIFFERING_ROWS, lambda last: last.dataset
    )
    rows = [
        (
            markup.link(str(d.dataset), markup.dataset_at(d.dataset, branch=line.name)),
            markup.badge(d.kind, "kind"),
            markup.badge(f"on {line.name}", "warn")
            if d.is_changed
            else markup.badge(f"on {d.parent} only", "quiet"),
            markup.moment(d.at, visit.now),
            d.actor or "",
            markup.link("Compare", _compare(d, line.name)),
        )
        for d in shown
    ]
    headings = (
        *("Dataset", "Kind", "Changed since the fork", "Written", "By"),
        markup.unseen("Comparison"),
    )
    drawn = markup.table(headings, rows, label="Datasets that differ")
    return markup.card("Other content than its parent", drawn, steps)


def _compare(d: DifferingDataset, branch: str) -> str:
    return markup.dataset_at(d.dataset, branch=branch, tab="compare", from_=d.parent, to=branch)
