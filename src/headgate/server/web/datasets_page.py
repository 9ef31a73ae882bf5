"""The datasets page: search, kind, branches and last publication of each dataset."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from headgate.model.nouns import DatasetLine
from headgate.server.web import markup
from headgate.server.web.page import Page, Visit, split_page

PAGE_ROWS = 50


def datasets_page(visit: Visit) -> Page:
    """Return one page of the datasets whose names contain the searched text, by name."""
    search = visit.param("q")
    total, found = visit.store.overview.datasets(
        search=search, after=visit.param("after"), limit=PAGE_ROWS + 1
    )
    lines, following = split_page(
        found,
        PAGE_ROWS,
        lambda last: markup.with_query(markup.DATASETS, q=search, after=str(last.dataset.name)),
    )
    body = _list(visit, lines) if lines else _nothing(search)
    number = markup.count(total, "dataset") + (f" with “{search}”" if search else "")
    beside = markup.tag("p", number, class_="beside", role="status")
    return Page(
        title="Datasets",
        place=markup.DATASETS,
        sections={
            "head": markup.heading("Datasets", beside),
            "list": markup.join([body, markup.more(following, "Next page")]),
        },
    )


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
