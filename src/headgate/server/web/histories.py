"""How a branch of a dataset came to be: its transactions, who made them and why, what they met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.catalog.database import Connection
from headgate.catalog.find import load_transaction
from headgate.catalog.log import list_history
from headgate.model.ids import TransactionId
from headgate.model.nouns import Transaction
from headgate.server.web import addresses
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    card,
    cell,
    code,
    count,
    empty,
    link,
    moment,
    more,
    short,
    table,
)
from headgate.server.web.showing import Shown
from headgate.server.web.visiting import Visit

_PAGE_ROWS = 25


def history(visit: Visit, shown: Shown) -> Markup:
    """Transactions, newest first, each to be compared with the one before it."""
    if shown.branch is None:
        return empty("A chain or a moment has no history of its own.", "Choose a branch.")
    found = _load_history(visit, shown)
    if not found:
        return empty("No transaction yet.", "What is written here is listed, newest first.")
    following = found[_PAGE_ROWS - 1].parent if len(found) > _PAGE_ROWS else None
    rows = [_line(visit, shown, transaction) for transaction in found[:_PAGE_ROWS]]
    headings = ("Transaction", "Type", "State", "When", "By", "Why", "Checks", "")
    older = shown.at(tab="history", before=following) if following else None
    aborted = visit.asked("all") == "1"
    switch = link(
        "Leave out aborted ones" if aborted else "Show aborted ones too",
        shown.at(tab="history", all=None if aborted else "1"),
    )
    drawn = table(headings, rows, label="Transactions")
    return card("History", drawn, more(older), beside=tag("span", switch, class_="beside"))


def _load_history(visit: Visit, shown: Shown) -> list[Transaction]:
    assert shown.branch is not None
    branch, before = shown.branch, visit.asked("before")

    def read(connection: Connection) -> list[Transaction]:
        start = branch
        if before:
            first = load_transaction(connection, before)
            start = replace(
                branch, head=first.id if first.dataset_id == branch.dataset_id else None
            )
        aborted = visit.asked("all") == "1" and not before
        return list_history(connection, start, aborted=aborted, limit=_PAGE_ROWS + 1)

    return visit.store.database.read(read)


def _line(visit: Visit, shown: Shown, t: Transaction) -> tuple[Child, ...]:
    compare = None
    if t.parent is not None and t.version is not None and not t.condemned:
        compare = link("Compare", shown.at(tab="compare", from_=t.parent, to=t.id))
    return (
        code_of(t.id),
        badge(t.type.value, "kind"),
        badge(t.state.value),
        moment(t.closed_at or t.opened_at, visit.now),
        t.actor,
        why(t),
        checks_badge(t.provenance),
        badge("expired", "quiet") if t.condemned else compare,
    )


def code_of(id: TransactionId | str) -> Markup:
    return tag("code", short(id), title=id)


def why(t: Transaction) -> Child:
    """What led to a transaction, as far as it says so itself."""
    told = t.provenance
    parts: list[Child] = []
    if adopted := told.get("adopted_from"):
        parts.append(["adopted from ", tag("strong", str(adopted.get("branch")))])
    if "build" in told:
        parts.append(link(str(told.get("job", "build")), addresses.build_at(str(told["build"]))))
    if "commit" in told:
        clean = "" if told.get("clean", True) else " (with uncommitted changes)"
        parts.append(["commit ", code(str(told["commit"])[:10]), clean])
    if t.unit is not None:
        parts.append("with others, in one unit")
    separated: list[Child] = []
    for at, part in enumerate(parts):
        separated += [", ", part] if at else [part]
    return separated or ("dropped here" if t.version is None else "a write of its own")


def checks_badge(told: Mapping[str, Any]) -> Markup | str:
    results = told.get("checks") or []
    if not results:
        return ""
    failed = [result for result in results if not result["passed"]]
    if not failed:
        return badge(f"{len(results)} passed", "good")
    worst = "bad" if any(result["on_error"] != "WARN" for result in failed) else "warn"
    return badge(f"{len(failed)} of {len(results)} failed", worst)


def checks(visit: Visit, shown: Shown) -> Markup:
    """What was checked when the version that is shown was made."""
    results = shown.view.provenance.get("checks") if shown.view else None
    if not results:
        hint = "Checks are declared with a transform's inputs and outputs, and run by builds."
        return empty("Nothing was checked when this version was made.", hint)
    told = tag("span", count(len(results), "check"), class_="beside")
    return card("Checks", check_table(results), beside=told)


def check_table(results: list[Mapping[str, Any]]) -> Markup:
    rows = [
        (
            result["name"],
            badge("passed") if result["passed"] else badge("failed", _tone(result)),
            tag("span", result["dataset"], " ", badge(result["stage"], "kind")),
            result["expectation"],
            join([result["reason"], _samples(result)]),
        )
        for result in results
    ]
    return table(("Check", "Result", "On", "Expected", "Found"), rows, label="Checks")


def _tone(result: Mapping[str, Any]) -> str:
    return "warn" if result["on_error"] == "WARN" else "bad"


def _samples(result: Mapping[str, Any]) -> Child:
    samples = result.get("samples") or ()
    if not samples:
        return None
    columns = list(samples[0])
    rows = [[cell(sample.get(column)) for column in columns] for sample in samples]
    return table(columns, rows, label=f"Samples of {result['name']}")
