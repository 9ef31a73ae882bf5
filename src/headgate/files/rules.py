"""What a transaction's type allows it to do to a tree; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.files.difference import Change, ChangeKind
from headgate.files.entries import directories_of
from headgate.model.nouns import TransactionType

_FORBIDDEN = {
    TransactionType.SNAPSHOT: frozenset[ChangeKind](),
    TransactionType.APPEND: frozenset({ChangeKind.CHANGED, ChangeKind.REMOVED}),
    TransactionType.UPDATE: frozenset({ChangeKind.REMOVED}),
    TransactionType.DELETE: frozenset({ChangeKind.ADDED, ChangeKind.CHANGED}),
}
_VERBS = {
    ChangeKind.ADDED: "adds",
    ChangeKind.CHANGED: "overwrites",
    ChangeKind.REMOVED: "removes",
}


def find_violation(type: TransactionType, changes: Iterable[Change]) -> str | None:
    """Why a transaction of this type may not make these changes, naming a path, or None."""
    forbidden = _FORBIDDEN[type]
    if not forbidden:
        return None
    all_changes = list(changes)
    broken = [change for change in all_changes if change.kind in forbidden]
    unexcused = _without_directories_that_stay(broken, all_changes)
    if not unexcused:
        return None
    first = unexcused[0]
    more = f" (and {len(unexcused) - 1} more paths)" if len(unexcused) > 1 else ""
    return f"it {_VERBS[first.kind]} {first.path!r}{more}, which {type} does not allow"


def _without_directories_that_stay(
    broken: Sequence[Change], changes: Iterable[Change]
) -> list[Change]:
    """Leaves out directories whose entry came or went only because their content went or came."""
    if not any(_is_directory_alone(change) for change in broken):
        return list(broken)
    filled, emptied = set[str](), set[str]()
    for change in changes:
        if change.kind is not ChangeKind.CHANGED:
            above = filled if change.kind is ChangeKind.ADDED else emptied
            above.update(directories_of(change.path))
    stays = {ChangeKind.REMOVED: filled, ChangeKind.ADDED: emptied}
    return [
        change
        for change in broken
        if not (_is_directory_alone(change) and change.path in stays[change.kind])
    ]


def _is_directory_alone(change: Change) -> bool:
    """Whether an empty directory's entry came or went, rather than turned into a file."""
    entry = change.before or change.after
    return change.kind is not ChangeKind.CHANGED and entry is not None and entry.is_directory
