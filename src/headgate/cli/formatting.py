"""The nouns as a person reads them: rows and trees; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from headgate.model.ids import Instant
from headgate.model.instants import instant_text
from headgate.model.nouns import (
    Branch,
    MoveRecord,
    Publication,
    Transaction,
    TransactionState,
)

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
