"""Messages for statements that Spark failed to execute."""

from __future__ import annotations

import pytest

from headgate.errors import (
    ClientCleanupRefused,
    ContextReadOnly,
    Exists,
    HeadgateError,
    InvalidStatement,
    NamespaceExists,
    RequirementFailed,
    StatementFailed,
    StorageFull,
    TableNotFound,
    UnknownInStatement,
)
from headgate.spark.sql import _reason, failure_of

_JAVA = """An error occurred while calling o100.sql.
: org.apache.iceberg.exceptions.ForbiddenException: attempt 1 is superseded
\tat org.apache.iceberg.rest.ErrorHandlers.accept(ErrorHandlers.java:150)
"""


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (_JAVA, "attempt 1 is superseded"),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at 'x'.\nline 1",
            "[PARSE_SYNTAX_ERROR] Syntax error at 'x'.",
        ),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error.\n\n== SQL ==", "[PARSE_SYNTAX_ERROR] Syntax error."),
        ("", ""),
    ],
)
def test_reason_of_a_failed_statement_is_its_first_sentence(details: str, reason: str) -> None:
    assert _reason(details) == reason


@pytest.mark.parametrize(
    ("details", "analysed", "kind"),
    [
        ("\n[PARSE_SYNTAX_ERROR] Syntax error.", True, InvalidStatement),
        ("[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table `t`.", True, Exists),
        (": Cannot purge table: GC is disabled (it may corrupt)", False, ClientCleanupRefused),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found.", True, UnknownInStatement),
        ("An error occurred while calling o1.sql.\n: a.b.C: disk full", False, StatementFailed),
        (_JAVA.replace("superseded", "no code [no_such_code]"), False, StatementFailed),
        (": a.b.C: aborted\nCaused by: x.Y: No space left on device", False, StorageFull),
    ],
)
def test_failure_of_a_statement_is_told_by_whose_fault_it_is(
    details: str, analysed: bool, kind: type[HeadgateError]
) -> None:
    assert type(failure_of(details, analysed=analysed)) is kind


def test_failure_that_the_catalog_told_of_is_the_catalogs_own() -> None:
    said = "Commit failed: context 'master@5' is a moment. [context_read_only]"
    error = failure_of(_JAVA.replace("attempt 1 is superseded", said), analysed=False)
    assert isinstance(error, ContextReadOnly)
    assert error.message == "context 'master@5' is a moment."


@pytest.mark.parametrize("prefix", ["", "Commit failed: "])
@pytest.mark.parametrize(
    "error",
    [
        TableNotFound(table="a.b", context="master"),
        NamespaceExists(namespace="a"),
        RequirementFailed(requirement="assert-ref-snapshot-id", expected=1, actual=2),
    ],
    ids=lambda error: error.code,
)
def test_failure_that_begins_as_icebergs_own_words_keeps_them(
    error: HeadgateError, prefix: str
) -> None:
    passed_on = f"{prefix}{error.message} [{error.code}]"
    found = failure_of(_JAVA.replace("attempt 1 is superseded", passed_on), analysed=False)
    assert (type(found), found.message) == (type(error), error.message)
