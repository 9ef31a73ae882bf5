"""The datasets page: search, kind, branches and last publication of each dataset."""

from collections.abc import Sequence

from markupsafe import Markup

from headgate.model.nouns import DatasetLine
from headgate.server.web import markup
from headgate.server.web.page import Page, Visit, build_table, split_page

PAGE_ROWS = 50
# Branches and builds that a search shows at most.
_OTHERS = 10
# Each word is a condition of SQL, and databases have limits for conditions and patterns.
_LONGEST_SEARCH = 300


def datasets_page(visit: Visit) -> Page:
    """Return one page of the datasets whose names contain the searched text, by name."""
    search = visit.param("q")[:_LONGEST_SEARCH]
    total, found = visit.store.overview.datasets(
        search=search, after=visit.param("after"), limit=PAGE_ROWS + 1
    )
    lines, steps = split_page(
        visit, markup.DATASETS, found, PAGE_ROWS, lambda last: last.dataset.name
    )
    body = _list(visit, lines) if lines else _nothing(search)
    number = markup.count(total, "dataset") + (f" with “{search}”" if search else "")
    beside = markup.tag("p", number, class_="beside", role="status")
    return Page(
        title="Datasets",
        place=markup.DATASETS,
        sections={
            "head": markup.heading("Datasets", beside),
            "list": markup.join([body, steps]),
            "others": _others(visit, search),
        },
    )


def _others(visit: Visit, search: str) -> Markup:
    """Return the branches and the builds that a search finds beside the datasets."""
    if not search:
        return markup.join(None)
    total, lines = visit.store.overview.branches(search=search, limit=_OTHERS)
    names = [markup.link(line.name, markup.branch_at(line.name), class_="chip") for line in lines]
    if total > len(lines):
        every = markup.with_query(markup.BRANCHES, search=search)
        names.append(markup.link(f"all {total:,}", every))
    builds = visit.store.overview.find_builds(search, limit=_OTHERS)
    cards = [
        markup.card("Branches", markup.chips(names)) if names else None,
        markup.card("Builds", build_table(visit, builds)) if builds else None,
    ]
    return markup.tag("div", cards, class_="others")


def _list(visit: Visit, lines: Sequence[DatasetLine]) -> Markup:
    rows = [
        (
            markup.tag(
                "span",
                markup.mark(blue=line.blue, primary=visit.primary),
                markup.link(str(line.dataset.name), markup.dataset_at(line.dataset.name)),
                class_="named",
            ),
            markup.badge(line.dataset.kind.value, "kind"),
            _branches(line),
            markup.moment(line.last.at if line.last else None, visit.now),
            line.last.actor if line.last else "",
        )
        for line in lines
    ]
    legend = markup.tag(
        "p",
        markup.mark(blue=True, primary=visit.primary),
        f" a JobSpec on {visit.primary} makes it   ",
        markup.mark(blue=False, primary=visit.primary),
        " none does",
        class_="legend",
    )
    drawn = markup.table(("Dataset", "Kind", "Branches", "Published", "By"), rows, label="Datasets")
    return markup.join([drawn, legend])


def _branches(line: DatasetLine) -> markup.Child:
    if not line.branches:
        return markup.count(line.branch_count, "branch")
    here = [
        markup.link(name, markup.dataset_at(line.dataset.name, branch=name), class_="chip")
        for name in line.branches
    ]
    return markup.chips(here)


def _nothing(search: str) -> Markup:
    if search:
        every = markup.link("See all datasets", markup.DATASETS)
        return markup.empty(f"No dataset has “{search}” in its name.", every)
    hint = markup.join(
        [
            "Make one from a shell, or let Spark or a build make it:",
            markup.command("headgate dataset create sales.orders --kind table"),
        ]
    )
    return markup.empty("There is no dataset yet.", hint)
