"""All datasets: search, what kind, on which branches, who published last."""

from __future__ import annotations

from headgate.catalog.database import Connection
from headgate.catalog.overview import DatasetLine, count_datasets, list_dataset_lines
from headgate.model.names import parse_dataset_name
from headgate.server.web import markup
from headgate.server.web.markup import (
    Child,
    Markup,
    badge,
    command,
    count,
    empty,
    heading,
    join,
    link,
    mark,
    moment,
    more,
    table,
    tag,
)
from headgate.server.web.page import Page, Section, Visit

PAGE_ROWS = 50


def datasets_page(visit: Visit) -> Page:
    """A page of datasets by name, those that contain the searched text."""
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
    told = f"{count(total, 'dataset')} with “{search}”" if search else count(total, "dataset")
    beside = tag("p", told, class_="beside", role="status")
    return Page(
        title="Datasets",
        place=markup.DATASETS,
        sections=(
            Section(key="head", body=heading("Datasets", beside)),
            Section(key="list", body=join([body, more(following, "Next page")])),
        ),
    )


def _list(visit: Visit, lines: list[DatasetLine]) -> Markup:
    rows = [
        (
            tag(
                "span",
                mark(blue=line.blue, primary=visit.primary),
                link(str(line.dataset.name), markup.dataset_at(line.dataset.name)),
                class_="named",
            ),
            badge(line.dataset.kind.value, "kind"),
            _branches(line),
            moment(line.last.at if line.last else None, visit.now),
            line.last.actor if line.last else "",
        )
        for line in lines
    ]
    legend = tag(
        "p",
        mark(blue=True, primary=visit.primary),
        f" a JobSpec on {visit.primary} makes it   ",
        mark(blue=False, primary=visit.primary),
        " none does",
        class_="legend",
    )
    drawn = table(("Dataset", "Kind", "Branches", "Published", "By"), rows, label="Datasets")
    return join([drawn, legend])


def _branches(line: DatasetLine) -> Child:
    if not line.branches:
        return count(line.branch_count, "branch")
    here = [
        link(name, markup.dataset_at(line.dataset.name, branch=name), class_="chip")
        for name in line.branches
    ]
    return tag("span", here, class_="chips")


def _nothing(search: str) -> Markup:
    if search:
        every = link("See all datasets", markup.DATASETS)
        return empty(f"No dataset has “{search}” in its name.", every)
    hint = join(
        [
            "Make one from a shell, or let Spark or a build make it:",
            command("headgate dataset create sales.orders --kind table"),
        ]
    )
    return empty("There is no dataset yet.", hint)
