"""The nouns as a person reads them: rows and trees; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from headgate.builds.report import ShownJob
from headgate.cli.output import note, show_json, show_line, show_table
from headgate.model.changes import Receipt
from headgate.model.ids import Instant, instant_text
from headgate.model.incrementality import REFUSED
from headgate.model.nouns import (
    Branch,
    JobState,
    MoveRecord,
    Publication,
    PublicationKind,
    Transaction,
    TransactionState,
)
from headgate.store.documents import Json, publication_json, unpublished_json
from headgate.store.embedded import Store
from headgate.tables.inspect import type_text

_MOVES_SHOWN = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STATE_STYLES = {
    TransactionState.OPEN: "yellow",
    TransactionState.COMMITTED: "green",
    TransactionState.ABORTED: "dim",
}


def branch_trees(branches: Iterable[Branch], protected: Collection[str] = ()) -> list[Tree]:
    """A tree for each dataset: its roots, below them their children, with heads and views."""
    by_dataset: dict[str, list[Branch]] = defaultdict(list)
    for branch in branches:
        by_dataset[str(branch.dataset)].append(branch)
    return [_dataset_tree(name, of, protected) for name, of in by_dataset.items()]


def _dataset_tree(name: str, branches: Sequence[Branch], protected: Collection[str]) -> Tree:
    tree = Tree(Text(name, style="bold"))
    children: dict[str | None, list[Branch]] = defaultdict(list)
    for branch in branches:
        children[branch.parent].append(branch)

    def grow(node: Tree, parent: str | None) -> None:
        for branch in children[parent]:
            grow(node.add(branch_line(branch, is_protected=branch.name in protected)), branch.name)

    grow(tree, None)
    return tree


def branch_line(branch: Branch, *, is_protected: bool = False) -> Text:
    """`master  t-2 (protected)`; an OPEN head is named beside the view."""
    line = Text.assemble((branch.name, "cyan"), "  ", (branch.view or "empty", "dim"))
    if branch.is_open:
        line.append(f"  OPEN {branch.head}", style=_STATE_STYLES[TransactionState.OPEN])
    if is_protected:
        line.append("  protected", style="magenta")
    return line


def history_rows(transactions: Iterable[Transaction]) -> list[tuple[str, ...]]:
    return [
        (t.id, t.type, t.state, t.actor, moment_text(t.closed_at or t.opened_at), t.branch)
        for t in transactions
    ]


def log_rows(
    publications: Iterable[Publication], events: Iterable[Mapping[str, Any]] = ()
) -> list[tuple[str, ...]]:
    """Publications and events together, newest first."""
    rows = [
        (instant_text(p.at), str(p.number), p.kind.value, p.actor, moves_text(p.moves))
        for p in publications
    ]
    rows += [(e["at"], "", e["kind"], e["actor"], event_text(e)) for e in events]
    rows.sort(key=lambda row: row[0], reverse=True)
    return [
        (number, to_the_second(at), kind, actor, what) for at, number, kind, actor, what in rows
    ]


def moves_text(moves: Sequence[MoveRecord]) -> str:
    """Each branch that moved, from and to which transaction; of many only the first few."""
    shown = ", ".join(_move(move) for move in moves[:_MOVES_SHOWN])
    more = len(moves) - _MOVES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _move(move: MoveRecord) -> str:
    before, after = move.from_transaction or "nothing", move.to_transaction or "nothing"
    # An empty branch came or went.
    change = "" if before == after else f" {before} → {after}"
    return f"{move.dataset}@{move.branch}{change}"


def event_text(event: Mapping[str, Any]) -> str:
    """What an event was about: where, which transaction or operation, and whose it was."""
    where = "@".join(str(event[k]) for k in ("dataset", "branch") if event.get(k))
    parts = [where, event.get("transaction"), event.get("operation")]
    if event.get("original_actor"):
        parts.append(f"of {event['original_actor']}")
    return " ".join(str(part) for part in parts if part)


def transaction_line(noun: Mapping[str, Any]) -> Text:
    """A transaction's noun in one line."""
    closed = noun["closed_at"]
    return Text.assemble(
        (noun["transaction"], "bold"),
        f"  {noun['dataset']}@{noun['branch']}  {noun['type']}  ",
        (noun["state"], _STATE_STYLES[TransactionState(noun["state"])]),
        f"  by {noun['actor']}, opened {to_the_second(noun['opened_at'])}",
        f", closed {to_the_second(closed)}" if closed is not None else "",
    )


def moment_text(instant: Instant) -> str:
    """To the second, which is what a person compares."""
    return to_the_second(instant_text(instant))


def to_the_second(text: str) -> str:
    """The same of a moment that is text already."""
    return text[:19].replace("T", " ")


def size_text(size: int) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def count_text(count: int, one: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {one}" if count == 1 else f"{count:,} {one}s"


# What a command that publishes says when it is done.


def show_receipt(store: Store, receipt: Receipt, *, kind: PublicationKind, json: bool) -> None:
    """The publication, or that nothing changed."""
    if not json:
        show_moves(store, receipt)
        return
    publication = _find(store, receipt)
    if publication is None:
        show_json(unpublished_json(receipt, kind=kind, actor=store.settings.actor))
    else:
        show_json(publication_json(publication))


def show_moves(store: Store, receipt: Receipt) -> None:
    """The same for a person."""
    publication = _find(store, receipt)
    if publication is None:
        note("nothing changed, so nothing was published.")
    else:
        note(f"publication {publication.number}: {moves_text(publication.moves)}")


def _find(store: Store, receipt: Receipt) -> Publication | None:
    number = receipt.publication
    if number is None:
        return None
    return store.publication(number)


# What a built transaction says of itself, as a person reads it; pure.


def built_text(facts: Mapping[str, Any]) -> str:
    """`incremental: reads shop.orders 4..5; 3 checks passed`; empty for what no build made."""
    adopted = facts.get("adopted_from")
    parts = [
        f"adopted from {adopted['branch']}" if adopted else "",
        extent_text(facts.get("incremental")),
        checks_text(facts.get("checks") or ()),
    ]
    return "; ".join(part for part in parts if part)


def extent_text(incremental: Mapping[str, Any] | None) -> str:
    """How much is read, or why all of it; in the words of a plan."""
    if incremental is None:
        return ""
    if incremental["reason"]:
        # A plan of a transform that must not be built in full says that it is going to fail.
        word = REFUSED if incremental.get("refused") else incremental["extent"]
        return f"{word}: {incremental['reason']}"
    spans = ", ".join(_span_text(span) for span in incremental["reads"]) or "no input"
    return f"{incremental['extent']}: reads {spans}"


def checks_text(checks: Sequence[Mapping[str, Any]]) -> str:
    """`3 checks passed`, or those that did not, by name."""
    if not checks:
        return ""
    missed = [check["name"] for check in checks if not check["passed"]]
    if not missed:
        return f"{count_text(len(checks), 'check')} passed"
    named = ", ".join(repr(name) for name in missed)
    return f"{len(missed)} of {count_text(len(checks), 'check')} not met: {named}"


def _span_text(span: Mapping[str, Any]) -> str:
    if span["since"] is None:
        return f"all of {span['dataset']}"
    if span["numbers"] is None:
        return f"nothing new of {span['dataset']}"
    first, last = span["numbers"]
    return f"{span['dataset']} {first}..{last}" if first != last else f"{span['dataset']} {first}"


# What is in a dataset, as a person reads it.


def show_content(content: Json, *, rows: int) -> None:
    """A table's columns and rows, or files, from the document of `dataset show`."""
    if "files" in content:
        note(f"{count_text(content['files'], 'file')}, {size_text(content['bytes'])}")
        if rows:
            show_table(("PATH",), ([path] for path in content["paths"]), empty="no files.")
        return
    show_table(
        ("COLUMN", "TYPE", ""),
        ((c["name"], type_text(c["type"]), "required" * c["required"]) for c in content["schema"]),
        empty="the table was dropped here.",
    )
    if content["partitioning"]:
        note(f"partitioned by {', '.join(content['partitioning'])}")
    for name, value in sorted(content["properties"].items()):
        note(f"{name} = {value}")
    if content["schema"]:
        known = content["row_count"] is not None
        note(count_text(content["row_count"], "row") if known else "only Spark can count its rows")
    if rows and content["schema"]:
        names = [column["name"] for column in content["schema"]]
        values = ([row.get(name) for name in names] for row in content["rows"])
        show_table(names, values, empty="no rows")


# The difference between two versions as a person reads it, from the document of `diff`.

_CHANGE_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def show_difference(found: Json) -> None:
    """Schema, counts and samples, of which what is empty is left out."""
    show_line(f"{found['dataset']}: {_id(found['from'])} → {_id(found['to'])}")
    if _is_files(found):
        show_line(_files_text(found))
        for kind, changes in found["samples"].items():
            for change in changes:
                show_line(f"{_CHANGE_MARKS[kind]} {change['path']}")
        return
    for line in _schema_lines(found["schema"]):
        show_line(line)
    show_line(_rows_text(found))
    _show_rows("added", found["samples"]["added"])
    _show_rows("removed", found["samples"]["removed"])
    _show_changed(found)


def summary_row(found: Json) -> tuple[str, ...]:
    """One line about one dataset."""
    if _is_files(found):
        text = _files_text(found)
    else:
        text = "; ".join([*_schema_lines(found["schema"]), _rows_text(found)])
    return found["dataset"], found["kind"], _id(found["from"]), _id(found["to"]), text


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
    text = f"{_count(counts['from'])} → {_count(counts['to'])} rows"
    if counts["added"] is None:
        return text
    if not (counts["added"] or counts["removed"] or counts["changed"]):
        return f"{text}, the same"
    text = f"{text}: {counts['added']} added, {counts['removed']} removed"
    if not found["key"]:
        return text
    return f"{text}, {counts['changed']} changed by {', '.join(found['key'])}"


def _files_text(found: Json) -> str:
    counts = found["counts"]
    changes = ", ".join(f"{counts[kind]} {kind}" for kind in _CHANGE_MARKS)
    return f"{counts['from']} → {count_text(counts['to'], 'file')}: {changes}"


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


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


# Jobs as a tree for a person: state, reason, where inputs come from, what came out.

_STYLES = {
    JobState.WAITING: "dim",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "bold red",
    JobState.ABORTED: "red",
    JobState.SKIPPED: "dim",
    JobState.ADOPTED: "blue",
}
_STATE_MARKS = {
    JobState.WAITING: "○",
    JobState.RUNNING: "◐",
    JobState.SUCCEEDED: "●",
    JobState.FAILED: "✗",
    JobState.ABORTED: "✗",
    JobState.SKIPPED: "–",
    JobState.ADOPTED: "◆",
}
_BAR = 10
# Those that a watcher wants to see first, when not all jobs have room.
_WATCHED = (JobState.RUNNING, JobState.FAILED, JobState.ABORTED)


def job_tree(title: str, jobs: Sequence[Json]) -> Tree:
    """The chain on top, then a line per job with its inputs below."""
    tree = _chain(title)
    for job in jobs:
        node = tree.add(_line(job))
        for given in job["inputs"]:
            where = given["transaction"] or "(this build)"
            node.add(Text(f"reads {given['dataset']} @ {given['branch']}  {where}", style="dim"))
        if job.get("incremental") is not None:
            node.add(Text(extent_text(job["incremental"]), style="dim"))
        if job.get("error") is not None:
            node.add(Text(_error(job), style="red"))
    if not jobs:
        tree.add("nothing to do")
    return tree


def live_tree(title: str, jobs: Sequence[ShownJob], *, room: int) -> Tree:
    """As many jobs as the lines allow, those that run first of all; the others are counted."""
    tree = _chain(title)
    shown = _chosen(jobs, room)
    for position in sorted(shown):
        job = jobs[position].to_live_json()
        node = tree.add(_line(job))
        if (stages := _stages(job)) is not None:
            node.add(stages)
    rest = Counter(job.state for at, job in enumerate(jobs) if at not in shown)
    if rest:
        counted = ", ".join(f"{rest[state]} {state.value}" for state in JobState if rest[state])
        tree.add(Text(counted, style="dim"))
    return tree


def plain_line(job: Json) -> str:
    """A job in one line, without colours."""
    return _line(job).plain


def _stages(job: Json) -> Text | None:
    """How far Spark is with a running job."""
    found = job.get("stages")
    if job["state"] != JobState.RUNNING or found is None:
        return None
    full = _BAR * found["tasks_done"] // max(found["tasks"], 1)
    stage = min(found["done"] + 1, found["all"])
    return Text.assemble(
        (f"stage {stage}/{found['all']}  ", "dim"),
        ("━" * full, "cyan"),
        ("━" * (_BAR - full), "bright_black"),
        (f"  {found['tasks_done']}/{found['tasks']} tasks", "dim"),
    )


def _chosen(jobs: Sequence[ShownJob], room: int) -> set[int]:
    """Positions of the jobs to show: at work or failed, then those that ended last."""
    order = {state: at for at, state in enumerate(_WATCHED)}

    def rank(position: int) -> tuple[int, float]:
        job = jobs[position]
        return order.get(job.state, len(order)), -(job.ended or 0.0)

    chosen: set[int] = set()
    for position in sorted(range(len(jobs)), key=rank):
        # One that runs has a line of its own for its stages.
        room -= 2 if jobs[position].state is JobState.RUNNING else 1
        if room < 0:
            break
        chosen.add(position)
    return chosen


def _chain(title: str) -> Tree:
    return Tree(Text.assemble("chain ", (title, "bold")))


def _line(job: Json) -> Text:
    state = JobState(job["state"])
    style = _STYLES[state]
    line = Text.assemble(
        (f"{_STATE_MARKS[state]} ", style), (", ".join(job["outputs"]), "bold"), "  "
    )
    line.append(f"{state.value} ({job['reason']})", style=style)
    if job.get("adopted_from") is not None:
        line.append(f", from {job['adopted_from']['branch']}", style=style)
    if job["attempts"] > 1:
        line.append(f", attempt {job['attempts']}")
    if state is JobState.RUNNING and job.get("rows"):
        line.append(f", {count_text(job['rows'], 'row')}", style="dim")
    if state is JobState.SUCCEEDED:
        rows = f"{count_text(job['rows'], 'row')}, " if job.get("rows") is not None else ""
        jobs = count_text(job["spark_jobs"], "Spark job")
        line.append(f", {rows}{jobs}", style="dim")
    if job.get("seconds") is not None:
        line.append(f", {job['seconds']:.1f} s", style="dim")
    return line


def _error(job: Json) -> str:
    error = dict(job["error"] or {})
    where = f"{error['file']}:{error['line']}: " if error.get("file") else ""
    text = f"{where}{error.get('message', 'failed')}"
    return f"{text}\nlog: {job['log']}" if job.get("log") else text
