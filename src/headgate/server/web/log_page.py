"""The log page: publications, and the audit of recovery, by actor, dataset, branch and kind."""

from collections.abc import Sequence

from markupsafe import Markup

from headgate.model.access import Role
from headgate.model.nouns import MoveRecord, Publication, PublicationKind, net_moves
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.server.web import markup
from headgate.server.web.dataset_parts import code_of
from headgate.server.web.page import DatasetLinks, Page, Visit, split_page
from headgate.store.documents import Json, to_instant

_PAGE_ROWS = 50
_RECOVERIES = 50
_DENIALS = 20
_MOVES = 5
_TONES = {
    "commit": "good",
    "adopt": "taken",
    "merge": "busy",
    "reset": "warn",
    "delete": "bad",
    "restore": "good",
}


def log_page(visit: Visit) -> Page:
    """Return publications, newest first, below the newest rows of recovery's audit."""
    actor, before = visit.param("actor"), visit.int_param("before")
    dataset, branch = visit.param("dataset"), visit.param("branch")
    found = visit.store.publications(
        actor=actor or None,
        dataset=dataset or None,
        branch=branch or None,
        kind=visit.param("kind") or None,
        limit=_PAGE_ROWS + 1,
        before=before,
    )
    audit: list[Json] = []
    denied: list[Json] = []
    if before is None and visit.grant.role is Role.ADMIN:
        denied = visit.store.events(
            actor=actor or None, branch=branch or None, kind="refused", limit=_DENIALS
        )
    if before is None:
        settled = actor if actor != RECOVERY_ACTOR else ""
        audit = visit.store.recoveries(actor=settled or None, limit=_RECOVERIES)
    return Page(
        title="Log",
        place=markup.LOG,
        sections={
            "head": markup.heading("Log"),
            "filters": _filters(visit),
            "recoveries": _recoveries(
                visit, [row for row in audit if _concerns(row, dataset, branch)]
            ),
            "denied": _denials(visit, denied),
            "list": _publications(visit, found),
        },
    )


def _filters(visit: Visit) -> Markup:
    kinds = [("", "all kinds"), *((k.value, k.value) for k in PublicationKind)]
    return markup.form(
        markup.LOG,
        markup.field("actor", "By", visit.param("actor"), hint="all"),
        markup.field("dataset", "Dataset", visit.param("dataset"), hint="all"),
        markup.field("branch", "Branch", visit.param("branch"), hint="all"),
        markup.choice("kind", "Kind", kinds, visit.param("kind")),
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
    shown, steps = split_page(
        visit, markup.LOG, found, _PAGE_ROWS, lambda last: last.number, name="before"
    )
    links = DatasetLinks(visit, (move.dataset for p in shown for move in p.moves))
    rows = [
        (
            markup.tag("b", f"{p.number}"),
            markup.moment(p.at, visit.now),
            markup.badge(p.kind.value, _TONES.get(p.kind.value, "quiet")),
            markup.link(p.actor, markup.with_query(markup.LOG, actor=p.actor)),
            _moves(p.moves, links),
        )
        for p in shown
    ]
    drawn = markup.table(
        ("No.", "When", "Kind", "By", "What"), rows, label="Publications", numbers=(0,)
    )
    return markup.join([drawn, steps])


def _moves(recorded: tuple[MoveRecord, ...], links: DatasetLinks) -> Markup:
    moves = net_moves(recorded)
    lines = [markup.tag("li", _move(move, links)) for move in moves[:_MOVES]]
    if len(moves) > _MOVES:
        lines.append(markup.tag("li", f"and {len(moves) - _MOVES} more", class_="faint"))
    return markup.tag("ul", lines, class_="moves")


def _move(move: MoveRecord, links: DatasetLinks) -> markup.Child:
    where = [links(move.dataset, move.branch, tab="history"), " ", markup.chip(move.branch)]
    before, after = move.from_transaction, move.to_transaction
    if before == after:
        return where
    steps = [code_of(before) if before else "nothing", " → ", code_of(after) if after else "gone"]
    return [where, " ", steps]


def _concerns(row: Json, dataset: str, branch: str) -> bool:
    targets = [outcome["target"] for outcome in row["outcomes"]]
    return any(
        (not dataset or target.get("dataset") == dataset)
        and (not branch or target["branch"] == branch)
        for target in targets
    )


def _recoveries(visit: Visit, audit: Sequence[Json]) -> Markup:
    if not audit:
        return markup.join(None)
    targets = (outcome["target"].get("dataset") for row in audit for outcome in row["outcomes"])
    links = DatasetLinks(visit, filter(None, targets))
    rows = [
        (
            markup.moment(to_instant(row["at"]), visit.now),
            markup.badge(row["kind"], "warn"),
            row["original_actor"],
            code_of(row["operation"]),
            markup.tag(
                "ul",
                [markup.tag("li", _outcome(o, links)) for o in row["outcomes"]],
                class_="moves",
            ),
        )
        for row in audit
    ]
    drawn = markup.table(("When", "Kind", "Work of", "Operation", "What"), rows, label="Recoveries")
    return markup.card("What recovery settled", drawn)


def _denials(visit: Visit, denied: Sequence[Json]) -> Markup:
    """Return the newest denied requests: one row an hour for each token and rule."""
    if not denied:
        return markup.join(None)
    rows = [
        (
            markup.moment(to_instant(row["at"]), visit.now),
            row["actor"],
            [row["wanted"], " ", markup.chip(row["branch"]) if row["branch"] else ""],
            row["code"],
            f"{row.get('count', 1):,}",
        )
        for row in denied
    ]
    columns = ("First in its hour", "By", "Request", "Reason", "Times")
    return markup.card(
        "Denied requests", markup.table(columns, rows, label="Denied requests", numbers=(4,))
    )


def _outcome(outcome: Json, links: DatasetLinks) -> markup.Child:
    target = outcome["target"]
    name, branch = target.get("dataset"), target["branch"]
    if name is None:
        # A branch of lakeFS, outside the catalog.
        where: markup.Child = f"lakeFS {target['repository']}"
        shown = outcome["head"]
    else:
        where, shown = links(name, branch, tab="history"), outcome["restored_to"]
    return [
        where,
        " ",
        markup.chip(branch),
        f" {outcome['outcome']} at ",
        code_of(shown) if shown else "nothing",
    ]
