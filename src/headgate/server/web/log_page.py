"""The log page: publications, and the audit of recovery, by actor, dataset, branch and kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from headgate.catalog.database import Connection
from headgate.catalog.log import list_publications, list_recoveries
from headgate.catalog.records import load_dataset
from headgate.errors import Invalid
from headgate.model.ids import DatasetId
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import MoveRecord, Publication, PublicationKind
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.server.web import markup
from headgate.server.web.dataset_parts import code_of
from headgate.server.web.page import Page, Section, Visit

_PAGE_ROWS = 50
_RECOVERIES = 50
_MOVES = 5
_TONES = {"commit": "good", "adopt": "taken", "merge": "busy", "reset": "warn", "delete": "bad"}


def log_page(visit: Visit) -> Page:
    """Return publications, newest first, below the newest rows of recovery's audit."""
    kind = visit.asked("kind")
    if kind and kind not in set(PublicationKind):
        raise Invalid(f"{kind!r} is no kind of publication.", kind=kind)
    before = visit.asked_number("before")

    def read(connection: Connection) -> tuple[list[Publication], list[dict[str, Any]]]:
        wanted = _dataset(connection, visit.asked("dataset"))
        branch = visit.asked("branch") or None
        actor = visit.asked("actor") or None
        found = list_publications(
            connection,
            actor=actor,
            dataset=wanted,
            branch=branch,
            kind=PublicationKind(kind) if kind else None,
            limit=_PAGE_ROWS + 1,
            before=before,
        )
        if before is not None:
            return found, []
        audit = list_recoveries(
            connection, actor=actor if actor != RECOVERY_ACTOR else None, limit=_RECOVERIES
        )
        return found, [row for row in audit if _concerns(row, visit.asked("dataset"), branch)]

    found, audit = visit.store.database.read(read)
    return Page(
        title="Log",
        place=markup.LOG,
        sections=(
            Section(key="head", body=markup.heading("Log")),
            Section(key="filters", body=_filters(visit, kind)),
            Section(key="recoveries", body=_recoveries(visit, audit)),
            Section(key="list", body=_publications(visit, found)),
        ),
    )


def _dataset(connection: Connection, name: str) -> DatasetId | None:
    return load_dataset(connection, parse_dataset_name(name)).id if name else None


def _filters(visit: Visit, kind: str) -> Markup:
    kinds = [("", "all kinds"), *((k.value, k.value) for k in PublicationKind)]
    return markup.form(
        markup.LOG,
        markup.field("actor", "By", visit.asked("actor"), hint="anybody"),
        markup.field("dataset", "Dataset", visit.asked("dataset"), hint="all"),
        markup.field("branch", "Branch", visit.asked("branch"), hint="all"),
        markup.choice("kind", "Kind", kinds, kind),
        label="Filter the log",
        button="Filter",
    )


def _publications(visit: Visit, found: list[Publication]) -> Markup:
    if not found:
        if visit.query:
            return markup.empty(
                "Nothing was published that fits.", markup.link("See all", markup.LOG)
            )
        return markup.empty(
            "Nothing was published yet.", markup.command("headgate dataset create sales.orders")
        )
    rows = [
        (
            markup.tag("b", f"{p.number}"),
            markup.moment(p.at, visit.now),
            markup.badge(p.kind.value, _TONES.get(p.kind.value, "quiet")),
            markup.link(p.actor, markup.with_query(markup.LOG, actor=p.actor)),
            _moves(p.moves),
        )
        for p in found[:_PAGE_ROWS]
    ]
    older = None
    if len(found) > _PAGE_ROWS:
        last = found[_PAGE_ROWS - 1].number
        older = markup.with_query(markup.LOG, **{**visit.query, "before": str(last)})
    drawn = markup.table(
        ("No.", "When", "Kind", "By", "What"), rows, label="Publications", numbers=(0,)
    )
    return markup.join([drawn, markup.more(older)])


def _moves(moves: tuple[MoveRecord, ...]) -> Markup:
    lines = [markup.tag("li", _move(move)) for move in moves[:_MOVES]]
    if len(moves) > _MOVES:
        lines.append(markup.tag("li", f"and {len(moves) - _MOVES} more", class_="faint"))
    return markup.tag("ul", lines, class_="moves")


def _move(move: MoveRecord) -> markup.Child:
    at = markup.dataset_at(move.dataset, branch=move.branch, tab="history")
    where = [
        markup.link(str(move.dataset), at),
        " ",
        markup.tag("span", move.branch, class_="chip"),
    ]
    before, after = move.from_transaction, move.to_transaction
    if before == after:
        return where
    steps = [code_of(before) if before else "nothing", " → ", code_of(after) if after else "gone"]
    return [where, " ", steps]


def _concerns(row: Mapping[str, Any], dataset: str, branch: str | None) -> bool:
    targets = [outcome["target"] for outcome in row["outcomes"]]
    return any(
        (not dataset or target.get("dataset") == dataset)
        and (branch is None or target["branch"] == branch)
        for target in targets
    )


def _recoveries(visit: Visit, audit: list[dict[str, Any]]) -> Markup:
    if not audit:
        return markup.join(None)
    rows = [
        (
            markup.moment(row["at"], visit.now),
            markup.badge(row["kind"], "warn"),
            row["original_actor"],
            code_of(row["operation"]),
            markup.tag(
                "ul", [markup.tag("li", _outcome(o)) for o in row["outcomes"]], class_="moves"
            ),
        )
        for row in audit
    ]
    drawn = markup.table(("When", "Kind", "Work of", "Operation", "What"), rows, label="Recoveries")
    return markup.card("What recovery settled", drawn)


def _outcome(outcome: Mapping[str, Any]) -> markup.Child:
    target = outcome["target"]
    name, branch = target.get("dataset"), target["branch"]
    if name is None:
        # A branch of lakeFS, outside the catalog.
        where: markup.Child = f"lakeFS {target['repository']}"
        shown = outcome["head"]
    else:
        at = markup.dataset_at(parse_dataset_name(name), branch=branch, tab="history")
        where, shown = markup.link(name, at), outcome["restored_to"]
    return [
        where,
        " ",
        markup.tag("span", branch, class_="chip"),
        f" {outcome['outcome']} at ",
        code_of(shown) if shown else "nothing",
    ]
