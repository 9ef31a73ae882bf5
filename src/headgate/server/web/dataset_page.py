"""One dataset on one branch: what it holds, how it came to be, how it differs from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from headgate.catalog.find import find_transaction
from headgate.errors import DatasetNotFound
from headgate.model.names import parse_dataset_name
from headgate.server.web import addresses
from headgate.server.web.comparing import comparison
from headgate.server.web.content import content
from headgate.server.web.declared_page import find_declared_page
from headgate.server.web.histories import checks, history
from headgate.server.web.logic import logic
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    choice,
    code,
    facts,
    form,
    heading,
    hidden,
    link,
    mark,
    moment,
    tabs,
)
from headgate.server.web.showing import Shown, load_shown
from headgate.server.web.visiting import Page, Section, Visit

_TABS: dict[str, tuple[str, Callable[[Visit, Shown], Markup]]] = {
    "content": ("Content", content),
    "history": ("History", history),
    "checks": ("Checks", checks),
    "compare": ("Compare", comparison),
    "logic": ("Logic", logic),
}


def dataset_page(visit: Visit) -> Page:
    """A dataset with one of its sides turned to the visitor."""
    try:
        shown = load_shown(visit)
    except DatasetNotFound:
        declared = find_declared_page(visit, parse_dataset_name(visit.subject))
        if declared is None:
            raise
        return declared
    tab = visit.asked("tab", "content")
    title, draw = _TABS.get(tab, _TABS["content"])
    places = [(text, shown.at(tab=key), text == title) for key, (text, _) in _TABS.items()]
    return Page(
        title=str(shown.dataset.name),
        place=addresses.DATASETS,
        sections=(
            Section(key="head", body=_head(visit, shown, tab)),
            Section(key="tabs", body=tabs("Sides of this dataset", places)),
            Section(key=title, body=draw(visit, shown)),
        ),
    )


def _head(visit: Visit, shown: Shown, tab: str) -> Markup:
    dataset = shown.dataset
    title: Child = [mark(blue=shown.blue, primary=visit.primary), str(dataset.name)]
    return join(
        [
            heading(
                title, badge(dataset.kind.value, "kind"), _chooser(shown, tab), _lineage_link(shown)
            ),
            facts(_facts(visit, shown)),
        ]
    )


def _lineage_link(shown: Shown) -> Markup | None:
    if shown.branch is None:
        return None
    at = addresses.with_query(
        addresses.LINEAGE, branch=shown.branch.name, dataset=str(shown.dataset.name)
    )
    return link("Lineage", at, class_="button")


def _chooser(shown: Shown, tab: str) -> Markup:
    names = [branch.name for branch in shown.branches]
    options = [(name, name) for name in names]
    if shown.context not in names:
        options.insert(0, (shown.context, shown.context))
    return form(
        addresses.dataset_at(shown.dataset.name),
        choice("branch", "Branch", options, shown.context),
        hidden("tab", tab),
        label="Choose a branch",
        class_="filters sends",
    )


def _facts(visit: Visit, shown: Shown) -> list[tuple[str, Child]]:
    pairs: list[tuple[str, Child]] = []
    branch, view = shown.branch, shown.view
    if branch is not None:
        above = addresses.dataset_at(shown.dataset.name, branch=branch.parent)
        pairs.append(("Parent", link(branch.parent, above) if branch.parent else "none: a root"))
    if view is None:
        pairs.append(("View", "nothing is committed here yet"))
        return pairs
    pairs += [
        ("View", [code(view.id), " ", badge(view.type.value, "kind")]),
        ("Published", [moment(view.closed_at, visit.now), f" by {view.actor}"]),
    ]
    if branch is not None and branch.is_open and branch.head is not None:
        pairs.append(("Open now", _open(visit, branch.head)))
    if "build" in view.provenance:
        id = str(view.provenance["build"])
        pairs.append(("Build", link(id, addresses.build_at(id))))
    return pairs


def _open(visit: Visit, head: str) -> Child:
    opened = visit.store.database.read(lambda c: find_transaction(c, head))
    if opened is None:
        return None
    since = moment(opened.opened_at, visit.now)
    return tag("span", code(head), " ", badge("OPEN"), f" by {opened.actor}, since ", since)
