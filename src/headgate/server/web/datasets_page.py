"""The datasets page: search, kind, branches and last publication of each dataset."""

from __future__ import annotations

from markupsafe import Markup

from headgate.catalog.database import Connection
from headgate.catalog.overview import DatasetLine, count_datasets, list_dataset_lines
from headgate.model.names import parse_dataset_name
from headgate.server.web import markup
from headgate.server.web.page import Page, Section, Visit

PAGE_ROWS = 50


def datasets_page(visit: Visit) -> Page:
    """Return one page of the datasets whose names contain the searched text, by name."""
    search, after = visit.asked("q"), visit.asked("after")
    behind = parse_dataset_name(after) if after else None

    def read(connection: Connection) -> tuple[int, list[DatasetLine]]:
        lines = list_dataset_lines(
            connection, primary=visit.primary, search=search, after=behind, limit=PAGE_ROWS + 1
        )
        return count_datasets(connection, search), lines

    total, lines = visit.store.database.read(read)
    body = _list(visit, lines[:PAGE_ROWS]) if lines else _nothing(search)
    following = None
    if len(lines) > PAGE_ROWS:
        last = str(lines[PAGE_ROWS - 1].dataset.name)
        following = markup.with_query(markup.DATASETS, q=search, after=last)
    told = (
        f"{markup.count(total, 'dataset')} with “{search}”"
        if search
        else markup.count(total, "dataset")
    )
    beside = markup.tag("p", told, class_="beside", role="status")
    return Page(
        title="Datasets",
        place=markup.DATASETS,
        sections=(
            Section(key="head", body=markup.heading("Datasets", beside)),
            Section(key="list", body=markup.join([body, markup.more(following, "Next page")])),
        ),
    )


def _list(visit: Visit, lines: list[DatasetLine]) -> Markup:
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
    return markup.tag("span", here, class_="chips")


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
