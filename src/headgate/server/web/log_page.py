"""The log: every publication, and what recovery settled, by actor, dataset, branch and kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.catalog.database import Connection
from headgate.catalog.log import list_events, list_publications
from headgate.catalog.records import load_dataset
from headgate.errors import Invalid
from headgate.model.ids import DatasetId
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import MoveRecord, Publication, PublicationKind
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.server.web import markup
from headgate.server.web.dataset_parts import code_of
from headgate.server.web.markup import (
    Child,
    Markup,
    badge,
    card,
    choice,
    command,
    empty,
    field,
    form,
    heading,
    join,
    link,
    moment,
    more,
    table,
    tag,
)
from headgate.server.web.page import Page, Section, Visit

_PAGE_ROWS = 50
_EVENTS = 50
_MOVES = 5
_TONES = {"commit": "good", "adopt": "taken", "merge": "busy", "reset": "warn", "delete": "bad"}


def log_page(visit: Visit) -> Page:
    """Publications, newest first; with recovery's own events beside them."""
    kind = visit.asked("kind")
    if kind and kind not in set(PublicationKind):
        raise Invalid(f"{kind!r} is no kind of publication.", kind=kind)
    before = visit.asked_number("before")

    def read(connection: Connection) -> tuple[list[Publication], list[dict[str, Any]]]:
        wanted = _dataset(connection, visit.asked("dataset"))
        branch = visit.asked("branch") or None
        found = list_publications(
            connection,
            actor=visit.asked("actor") or None,
            dataset=wanted,
            branch=branch,
            kind=PublicationKind(kind) if kind else None,
            limit=_PAGE_ROWS + 1,
            before=before,
        )
        if before is not None or visit.asked("actor", RECOVERY_ACTOR) != RECOVERY_ACTOR:
            return found, []
        settled = list_events(
            connection, actor=RECOVERY_ACTOR, dataset=wanted, branch=branch, limit=_EVENTS
        )
        return found, settled

    found, settled = visit.store.database.read(read)
    return Page(
        title="Log",
        place=markup.LOG,
        sections=(
            Section(key="head", body=heading("Log")),
            Section(key="filters", body=_filters(visit, kind)),
            Section(key="recoveries", body=_recoveries(visit, settled)),
            Section(key="list", body=_publications(visit, found)),
        ),
    )


def _dataset(connection: Connection, name: str) -> DatasetId | None:
    return load_dataset(connection, parse_dataset_name(name)).id if name else None


def _filters(visit: Visit, kind: str) -> Markup:
    kinds = [("", "all kinds"), *((k.value, k.value) for k in PublicationKind)]
    return form(
        markup.LOG,
        field("actor", "By", visit.asked("actor"), hint="anybody"),
        field("dataset", "Dataset", visit.asked("dataset"), hint="all"),
        field("branch", "Branch", visit.asked("branch"), hint="all"),
        choice("kind", "Kind", kinds, kind),
        label="Filter the log",
        button="Filter",
    )


def _publications(visit: Visit, found: list[Publication]) -> Markup:
    if not found:
        if visit.query:
            return empty("Nothing was published that fits.", link("See all", markup.LOG))
        return empty("Nothing was published yet.", command("headgate dataset create sales.orders"))
    rows = [
        (
            tag("b", f"{p.number}"),
            moment(p.at, visit.now),
            badge(p.kind.value, _TONES.get(p.kind.value, "quiet")),
            link(p.actor, markup.with_query(markup.LOG, actor=p.actor)),
            _moves(p.moves),
        )
        for p in found[:_PAGE_ROWS]
    ]
    older = None
    if len(found) > _PAGE_ROWS:
        last = found[_PAGE_ROWS - 1].number
        older = markup.with_query(markup.LOG, **{**visit.query, "before": str(last)})
    drawn = table(("No.", "When", "Kind", "By", "What"), rows, label="Publications", numbers=(0,))
    return join([drawn, more(older)])


def _moves(moves: tuple[MoveRecord, ...]) -> Markup:
    lines = [tag("li", _move(move)) for move in moves[:_MOVES]]
    if len(moves) > _MOVES:
        lines.append(tag("li", f"and {len(moves) - _MOVES} more", class_="faint"))
    return tag("ul", lines, class_="moves")


def _move(move: MoveRecord) -> Child:
    at = markup.dataset_at(move.dataset, branch=move.branch, tab="history")
    where = [link(str(move.dataset), at), " ", tag("span", move.branch, class_="chip")]
    before, after = move.from_transaction, move.to_transaction
    if before == after:
        return where
    steps = [code_of(before) if before else "nothing", " → ", code_of(after) if after else "gone"]
    return [where, " ", steps]


def _recoveries(visit: Visit, settled: list[dict[str, Any]]) -> Markup:
    if not settled:
        return join(None)
    rows = [
        (moment(event["at"], visit.now), badge(event["kind"], "warn"), _settled(event))
        for event in settled
    ]
    drawn = table(("When", "What", "Of"), rows, label="Recoveries")
    return card("What recovery settled", drawn)


def _settled(event: Mapping[str, Any]) -> Child:
    where = " on ".join(str(event[k]) for k in ("dataset", "branch") if event.get(k))
    whose = f", of {event['original_actor']}" if event.get("original_actor") else ""
    what = event.get("transaction") or event.get("operation")
    return [where, whose, " ", code_of(str(what)) if what else None]
