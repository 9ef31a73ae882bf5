"""The effect of a step from one version of a table to the next, and transaction types."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import TransactionTypeViolated
from headgate.model.nouns import TransactionType
from headgate.tables.snapshots import check_transaction_type, effect_between
from tests.support.metadata import change, column, commit, point, schema, table

APPEND, DELETE = TransactionType.APPEND, TransactionType.DELETE
UPDATE, SNAPSHOT = TransactionType.UPDATE, TransactionType.SNAPSHOT


def steps(*operations: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table with one snapshot, and the same after some more."""
    made = base = table(*commit(1))
    for at, operation in enumerate(operations, start=2):
        made = change(made, *commit(at, parent=at - 1, op=operation))
    return base, made


@pytest.mark.parametrize(
    ("operations", "inferred", "changes"),
    [
        (["append"], APPEND, True),
        (["append", "append"], APPEND, True),
        (["append", "replace"], APPEND, True),
        (["delete"], DELETE, True),
        (["delete", "append"], UPDATE, True),
        (["overwrite"], UPDATE, True),
        (["replace"], UPDATE, False),
        ([], UPDATE, False),
    ],
)
def test_effect_of_operations_is_the_type_they_add_up_to(
    operations: list[str], inferred: TransactionType, changes: bool
) -> None:
    effect = effect_between(*steps(*operations))
    assert (effect.inferred_type, effect.changes_content) == (inferred, changes)
    assert not effect.replaces


def test_effect_of_creation_is_a_snapshot_with_new_content() -> None:
    effect = effect_between(None, table(*commit(1)))
    assert (effect.inferred_type, effect.changes_content) == (SNAPSHOT, True)
    assert effect.operations == {"append"}


def test_effect_of_the_first_rows_of_an_empty_table_is_an_append() -> None:
    assert effect_between(table(), table(*commit(1))).inferred_type is APPEND


def test_effect_of_properties_alone_keeps_the_content_and_of_a_schema_does_not() -> None:
    base = table(*commit(1))
    tuned = change(base, {"action": "set-properties", "updates": {"a": "b"}})
    wider = change(
        base,
        {"action": "add-schema", "schema": schema(column(1, "id"), column(3, "x"))},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert not effect_between(base, tuned).changes_content
    assert effect_between(base, wider).changes_content


def test_effect_of_replacing_the_table_is_a_snapshot() -> None:
    base = table(*commit(1))
    made = change(base, {"action": "remove-snapshot-ref", "ref-name": "main"}, *commit(2))
    emptied = change(base, {"action": "remove-snapshot-ref", "ref-name": "main"})
    for effect in (effect_between(base, made), effect_between(base, emptied)):
        assert effect.inferred_type is SNAPSHOT
        assert effect.replaces and effect.changes_content


def test_effect_of_a_rollback_is_an_update_that_replaces() -> None:
    _, made = steps("append")
    effect = effect_between(made, change(made, point(1)))
    assert (effect.inferred_type, effect.replaces) == (UPDATE, True)


@pytest.mark.parametrize(
    ("declared", "operation", "allowed"),
    [
        (APPEND, "append", True),
        (APPEND, "replace", True),
        (APPEND, "overwrite", False),
        (APPEND, "delete", False),
        (DELETE, "delete", True),
        (DELETE, "append", False),
        (UPDATE, "overwrite", True),
        (SNAPSHOT, "overwrite", True),
    ],
)
def test_declared_type_allows_only_its_operations(
    declared: TransactionType, operation: str, allowed: bool
) -> None:
    effect = effect_between(*steps(operation))
    if allowed:
        check_transaction_type(transaction="t-1", type=declared, effect=effect)
    else:
        with pytest.raises(TransactionTypeViolated, match=operation):
            check_transaction_type(transaction="t-1", type=declared, effect=effect)


def test_declared_append_allows_the_first_version_and_refuses_a_replaced_table() -> None:
    base = table(*commit(1))
    first = effect_between(None, base)
    check_transaction_type(transaction="t-1", type=APPEND, effect=first)
    emptied = change(base, {"action": "remove-snapshot-ref", "ref-name": "main"})
    with pytest.raises(TransactionTypeViolated, match="replaced"):
        check_transaction_type(transaction="t-1", type=APPEND, effect=effect_between(base, emptied))
