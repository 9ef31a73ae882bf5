"""Text output of nouns, receipts, contents and differences: lines, table rows and trees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from headgate.cli.output import count_text, note, show_json, show_line, show_table
from headgate.model import nouns
from headgate.model.access import Protections
from headgate.model.changes import Receipt
from headgate.model.ids import instant_text
from headgate.model.incrementality import extent_text as extent_text
from headgate.model.object_store import size_text as size_text
from headgate.model.rules import rules_note
from headgate.store.documents import PUBLICATION, Json, jobspec_json, unpublished_json
from headgate.tables.schemas import type_text

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from headgate.builds.project import PublishReport
    from headgate.store.embedded import Store

_MOVES_SHOWN = 3
_STATE_STYLES = {
    nouns.TransactionState.OPEN: "yellow",
    nouns.TransactionState.COMMITTED: "green",
    nouns.TransactionState.ABORTED: "dim",
}


_UNPROTECTED = Protections()


def branch_trees(
    branches: Iterable[nouns.Branch], protected: Protections = _UNPROTECTED
) -> list[Tree]:
    """Return one tree of branches for each dataset, with heads and views."""
    by_dataset: dict[str, list[nouns.Branch]] = defaultdict(list)
    for branch in branches:
        by_dataset[str(branch.dataset)].append(branch)
    return [_dataset_tree(name, of, protected) for name, of in by_dataset.items()]


def _dataset_tree(name: str, branches: Sequence[nouns.Branch], protected: Protections) -> Tree:
    from rich.text import Text  # noqa: PLC0415  (slow)
    from rich.tree import Tree  # noqa: PLC0415  (slow)

    tree = Tree(Text(name, style="bold"))
    children: dict[str | None, list[nouns.Branch]] = defaultdict(list)
    for branch in branches:
        children[branch.parent].append(branch)

    def grow(node: Tree, parent: str | None) -> None:
        for branch in children[parent]:
            is_protected = protected.covers(branch.name, name)
            grow(node.add(branch_line(branch, is_protected=is_protected)), branch.name)

    grow(tree, None)
    return tree


def branch_line(branch: nouns.Branch, *, is_protected: bool = False) -> Text:
    """Return `master  t-2  protected`; an OPEN head follows the view."""
    from rich.text import Text  # noqa: PLC0415  (slow)

    line = Text.assemble((branch.name, "cyan"), "  ", (branch.view or "empty", "dim"))
    if branch.is_open:
        line.append(f"  OPEN {branch.head}", style=_STATE_STYLES[nouns.TransactionState.OPEN])
    if is_protected:
        line.append("  protected", style="magenta")
    return line


def history_rows(transactions: Sequence[nouns.Transaction]) -> list[tuple[str, ...]]:
    """Return rows of a history; those of an earlier name of the dataset name it."""
    return [
        (
            t.id,
            t.type,
            t.state,
            t.actor,
            to_the_second(instant_text(t.closed_at or t.opened_at)),
            t.branch if t.dataset == transactions[0].dataset else f"{t.branch}, as {t.dataset}",
        )
        for t in transactions
    ]


def log_rows(
    publications: Iterable[nouns.Publication], events: Iterable[Mapping[str, Any]] = ()
) -> list[tuple[str, ...]]:
    """Return rows of publications and events, newest first."""
    rows = [
        (instant_text(p.at), str(p.number), p.kind.value, p.actor, moves_text(p.moves))
        for p in publications
    ]
    rows += [(e["at"], "", e["kind"], e["actor"], event_text(e)) for e in events]
    rows.sort(key=lambda row: row[0], reverse=True)
    return [
        (number, to_the_second(at), kind, actor, what) for at, number, kind, actor, what in rows
    ]


def moves_text(moves: Sequence[nouns.MoveRecord]) -> str:
    """Return the first few moves, each as `dataset@branch from → to`, and the number of others."""
    net = nouns.net_moves(moves)
    shown = ", ".join(_move(move) for move in net[:_MOVES_SHOWN])
    more = len(net) - _MOVES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _move(move: nouns.MoveRecord) -> str:
    before, after = move.from_transaction or "nothing", move.to_transaction or "nothing"
    # An empty branch was created or deleted.
    change = "" if before == after else f" {before} → {after}"
    return f"{move.dataset}@{move.branch}{change}"


def event_text(event: Mapping[str, Any]) -> str:
    """Return the branch, transaction, operation and original actor of an event, or its denial."""
    where = "@".join(str(event[k]) for k in ("dataset", "branch") if event.get(k))
    parts = [where, event.get("transaction"), event.get("operation")]
    if event.get("original_actor"):
        parts.append(f"of {event['original_actor']}")
    if event.get("wanted"):
        times = f", {event['count']:,} times" if event.get("count", 1) > 1 else ""
        parts.append(f"{event['wanted']} ({event['code']}{times})")
    return " ".join(str(part) for part in parts if part)


def recovery_rows(audit: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            to_the_second(row["at"]),
            row["kind"],
            row["original_actor"],
            row["operation"],
            ", ".join(_outcome_text(outcome) for outcome in row["outcomes"]),
        )
        for row in audit
    ]


def _outcome_text(outcome: Mapping[str, Any]) -> str:
    """Return `raw.scans@master aborted, back at t-1`, or `songs@main landed at 5f2c…` (lakeFS)."""
    target = outcome["target"]
    where = f"{target.get('dataset') or target.get('repository')}@{target['branch']}"
    if "restored_to" in outcome:
        return f"{where} {outcome['outcome']}, back at {outcome['restored_to'] or 'nothing'}"
    return f"{where} {outcome['outcome']} at {outcome['head'] or 'nothing'}"


def transaction_line(noun: Mapping[str, Any]) -> Text:
    from rich.text import Text  # noqa: PLC0415  (slow)

    closed = noun["closed_at"]
    return Text.assemble(
        (noun["transaction"], "bold"),
        f"  {noun['dataset']}@{noun['branch']}  {noun['type']}  ",
        (noun["state"], _STATE_STYLES[nouns.TransactionState(noun["state"])]),
        f"  by {noun['actor']}, opened {to_the_second(noun['opened_at'])}",
        f", closed {to_the_second(closed)}" if closed is not None else "",
    )


def to_the_second(timestamp: str) -> str:
    """Return an ISO timestamp without fractions of a second."""
    return timestamp[:19].replace("T", " ")


def show_receipt(
    store: Store, receipt: Receipt, *, kind: nouns.PublicationKind, json: bool
) -> None:
    """Print the publication of a receipt, as text or as JSON."""
    if not json:
        show_moves(store, receipt)
    elif (publication := _find_publication(store, receipt)) is None:
        show_json(unpublished_json(receipt, kind=kind, actor=store.settings.actor))
    else:
        show_json(PUBLICATION.json(publication))


def show_moves(store: Store, receipt: Receipt) -> None:
    """Print the moves of a receipt's publication as text."""
    publication = _find_publication(store, receipt)
    if publication is None:
        note("nothing changed, so nothing was published.")
    else:
        note(f"publication {publication.number}: {moves_text(publication.moves)}")


def _find_publication(store: Store, receipt: Receipt) -> nouns.Publication | None:
    number = receipt.publication
    return None if number is None else store.publication(number)


def built_text(facts: Mapping[str, Any]) -> str:
    """Return `incremental: reads shop.orders 4..5; 3 checks passed`; empty if there is nothing."""
    adopted = facts.get("adopted_from")
    parts = [
        f"adopted from {adopted['branch']}" if adopted else "",
        extent_text(facts.get("incremental")),
        checks_text(facts.get("checks") or ()),
        rules_note(facts) or "",
    ]
    return "; ".join(part for part in parts if part)


def report_json(found: PublishReport) -> Json:
    """Return the document of a publication of JobSpecs."""
    return {
        **found.source.to_json(),
        "published": [jobspec_json(spec) for spec in found.published],
        "removed": list(found.removed),
        "warnings": [{"file": s.file, "line": s.line, "what": s.what} for s in found.suspicions],
    }


def note_report(found: PublishReport) -> None:
    """Write what was published, and the warnings, to stderr."""
    note(
        f"published {count_text(len(found.published), 'JobSpec')} of {found.source.commit[:10]} on "
        f"{found.source.branch}" + ("" if found.source.clean else " (not clean)")
    )
    for name in found.removed:
        note(f"  {name} is marked as removed")
    for s in found.suspicions:
        note(f"  warning {s.file}:{s.line}: {s.what}")
    for file in found.unreachable:
        note(f"  warning {file}: skipped, because no import can reach it")


def checks_text(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return `3 checks passed`, or the names of the failed checks."""
    if not checks:
        return ""
    missed = [check["name"] for check in checks if not check["passed"]]
    if not missed:
        return f"{count_text(len(checks), 'check')} passed"
    named = ", ".join(repr(name) for name in missed)
    return f"{len(missed)} of {count_text(len(checks), 'check')} not met: {named}"


def show_content(content: Json, *, rows: int) -> None:
    """Print a table's columns and rows, a view's queries, or files, of `dataset show`."""
    if "files" in content:
        note(f"{count_text(content['files'], 'file')}, {size_text(content['bytes'])}")
        if rows:
            show_table(("PATH",), ([path] for path in content["paths"]), empty="no files.")
        return
    show_table(
        ("COLUMN", "TYPE", ""),
        ((c["name"], type_text(c["type"]), "required" * c["required"]) for c in content["schema"]),
        empty=f"the {content['kind']} was dropped here.",
    )
    if content.get("partitioning"):
        note(f"partitioned by {', '.join(content['partitioning'])}")
    for name, value in sorted(content["properties"].items()):
        note(f"{name} = {value}")
    if "queries" in content:
        show_table(("DIALECT", "QUERY"), content["queries"].items(), empty="no queries")
        return
    if content["schema"]:
        known = content["row_count"] is not None
        note(count_text(content["row_count"], "row") if known else "only Spark can count its rows")
    if rows and content["schema"]:
        names = [column["name"] for column in content["schema"]]
        values = ([row.get(name) for name in names] for row in content["rows"])
        show_table(names, values, empty="no rows")


# Differences, from the document of `diff`.

_CHANGE_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def show_difference(found: Json) -> None:
    """Print schema changes, counts and samples; empty parts are left out."""
    show_line(f"{_named(found)}: {_id(found['from'])} → {_id(found['to'])}")
    if _is_files(found):
        show_line(_files_text(found))
        for kind, changes in found["samples"].items():
            for change in changes:
                show_line(f"{_CHANGE_MARKS[kind]} {change['path']}")
        _show_conflicts(found)
        return
    for line in _schema_lines(found["schema"]):
        show_line(line)
    show_line(_rows_text(found))
    _show_rows("added", found["samples"]["added"])
    _show_rows("removed", found["samples"]["removed"])
    _show_changed(found)
    _show_conflicts(found)


def _show_conflicts(found: Json) -> None:
    for conflict in found.get("conflicts") or ():
        show_line(f"! {conflict['reason']}")
        for side in ("base", "source", "target"):
            if side in conflict:
                show_line(f"    {side}: {orjson.dumps(conflict[side]).decode()}")


def summary_row(found: Json) -> tuple[str, ...]:
    """Return a table row that summarizes the difference of one dataset."""
    if _is_files(found):
        text = _files_text(found)
    else:
        text = "; ".join([*_schema_lines(found["schema"]), _rows_text(found)])
    return _named(found), found["kind"], _id(found["from"]), _id(found["to"]), text


def _named(found: Json) -> str:
    was = found["renamed_from"]
    named = f"{found['dataset']} (was {was})" if was else str(found["dataset"])
    return f"{named} – {found['rules']}" if "rules" in found else named


def _is_files(found: Json) -> bool:
    return bool(found["basis"] == "files" and found["kind"] == "files")


def _id(transaction: str | None) -> str:
    return transaction or "nothing"


def _schema_lines(changes: Mapping[str, Any]) -> list[str]:
    lines = [f"+ column {new['name']} {type_text(new['type'])}" for new in changes["added"]]
    lines += [f"- column {old['name']} {type_text(old['type'])}" for old in changes["removed"]]
    lines += [f"~ column {one['from']} is now {one['to']}" for one in changes["renamed"]]
    lines += [
        f"~ column {one['name']} {type_text(one['from'])} → {type_text(one['to'])}"
        for one in changes["retyped"]
    ]
    lines += [
        f"~ column {one['name']} is {'now' if one['to'] else 'no longer'} required"
        for one in changes["required"]
    ]
    return lines


def _rows_text(found: Json) -> str:
    counts = found["counts"]
    before, after = ("?" if n is None else n for n in (counts["from"], counts["to"]))
    text = f"{before} → {after} {'queries' if found['kind'] == 'view' else 'rows'}"
    if counts["added"] is None:
        return text
    if not (counts["added"] or counts["removed"] or counts["changed"]):
        schema = found["schema"]
        where = " in the columns of both" if schema["added"] or schema["removed"] else ""
        return f"{text}, the same{where}"
    text = f"{text}: {counts['added']} added, {counts['removed']} removed"
    if not found["key"]:
        return text
    return f"{text}, {counts['changed']} changed by {', '.join(found['key'])}"


def _files_text(found: Json) -> str:
    counts = found["counts"]
    changes = ", ".join(f"{counts[kind]} {kind}" for kind in _CHANGE_MARKS)
    return f"{counts['from']} → {count_text(counts['to'], 'file')}: {changes}"


def _show_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    show_line(f"\n{title}:")
    names = list(rows[0])
    show_table(names, ([row[name] for name in names] for row in rows), empty="")


def _show_changed(found: Json) -> None:
    rows = found["samples"]["changed"]
    if not rows:
        return
    show_line("\nchanged:")
    lines: list[Sequence[Any]] = [
        (*changed["key"].values(), new, changed["from"][old], changed["to"][new])
        for changed in rows
        for old, new in zip(changed["from"], changed["to"], strict=True)
    ]
    show_table((*found["key"], "COLUMN", "FROM", "TO"), lines, empty="")
