"""Builds: what runs now and what ran, kept up to date while it is looked at."""

from __future__ import annotations

from headgate.catalog.builds import BuildRecord, list_builds
from headgate.server.web import addresses
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    command,
    empty,
    heading,
    lasted,
    link,
    moment,
    more,
    short,
    table,
)
from headgate.server.web.visiting import Page, Section, Visit

_PAGE_ROWS = 30
_TARGETS = 3
_WATCH_SECONDS = 2.0


def builds_page(visit: Visit) -> Page:
    """Builds, newest first; looked at again as long as somebody watches."""
    after = visit.asked("after") or None
    found = visit.store.database.read(lambda c: list_builds(c, limit=_PAGE_ROWS + 1, after=after))
    following = None
    if len(found) > _PAGE_ROWS:
        following = addresses.with_query(addresses.BUILDS, after=found[_PAGE_ROWS - 1].id)
    body = _list(visit, found[:_PAGE_ROWS]) if found else _nothing()
    return Page(
        title="Builds",
        place=addresses.BUILDS,
        sections=(
            Section(key="head", body=heading("Builds", _running(found))),
            Section(key="list", body=join([body, more(following)])),
        ),
        refresh_seconds=_WATCH_SECONDS,
    )


def _running(found: list[BuildRecord]) -> Markup | None:
    running = sum(build.state == "running" for build in found)
    return tag("p", badge(f"{running} running", "busy"), role="status") if running else None


def _list(visit: Visit, found: list[BuildRecord]) -> Markup:
    rows = [
        (
            link(short(build.id), addresses.build_at(build.id), title=build.id),
            badge(build.state),
            targets(build),
            tag("span", build.branch, class_="chip"),
            moment(build.started_at, visit.now),
            lasted(build.started_at, build.ended_at or visit.now),
            build.actor,
        )
        for build in found
    ]
    headings = ("Build", "State", "Targets", "Branch", "Started", "Took", "By")
    return table(headings, rows, label="Builds")


def targets(build: BuildRecord) -> Child:
    """What was asked for; of many only the first few."""
    names = list(build.body["targets"])
    shown = [link(name, addresses.dataset_at(name, branch=build.branch)) for name in names]
    parts: list[Child] = []
    for at, one in enumerate(shown[:_TARGETS]):
        parts += [", ", one] if at else [one]
    rest = len(names) - _TARGETS
    return [parts, f" and {rest} more"] if rest > 0 else parts


def _nothing() -> Markup:
    return empty("Nothing was built yet.", command("headgate build sales.daily --upstream"))
