"""Output of `history` and `builds show` for a built transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.cli.format import built_text, checks_text, extent_text
from headgate.store.documents import history_json
from tests.support.nouns import a_transaction

READS = {"dataset": "s.in", "since": "t-3", "numbers": [4, 5]}
ADDED: dict[str, Any] = {"extent": "incremental", "reason": None, "reads": [READS]}


@pytest.mark.parametrize(
    ("reads", "text"),
    [
        (READS, "incremental: reads s.in 4..5"),
        ({**READS, "numbers": [4, 4]}, "incremental: reads s.in 4"),
        ({**READS, "numbers": None}, "incremental: reads nothing new of s.in"),
        ({**READS, "since": None}, "incremental: reads all of s.in"),
    ],
)
def test_extent_names_what_was_read(reads: dict[str, Any], text: str) -> None:
    assert extent_text({**ADDED, "reads": [reads]}) == text


def test_full_extent_gives_its_reason() -> None:
    full = {"extent": "full", "reason": "t-4 deleted from s.in", "reads": []}
    assert extent_text(full) == "full: t-4 deleted from s.in"
    assert extent_text({**full, "refused": True}).startswith(
        "not incremental, although required: t-4"
    )
    assert extent_text(None) == ""


def test_checks_are_counted_and_those_not_met_are_named() -> None:
    met, missed = {"name": "ids", "passed": True}, {"name": "rows", "passed": False}
    assert checks_text([met]) == "1 check passed"
    assert checks_text([met, missed]) == "1 of 2 checks not met: 'rows'"
    assert checks_text([]) == ""


def test_history_shows_what_the_build_found() -> None:
    check = {"name": "ids", "passed": True}
    facts = {"build": "build-1", "incremental": {**ADDED, "snapshots": {}}, "checks": [check]}
    made = replace(a_transaction("t-1"), provenance=facts)
    shown = history_json(made)
    assert (shown["number"], shown["build"], shown["checks"]) == (1, "build-1", [check])
    assert shown["incremental"] == ADDED
    assert built_text(facts) == "incremental: reads s.in 4..5; 1 check passed"
    assert built_text({"adopted_from": {"branch": "feature"}}) == "adopted from feature"


def test_history_of_what_no_build_made_says_nothing_of_builds() -> None:
    shown = history_json(a_transaction("t-1"))
    assert (shown["build"], shown["incremental"], shown["checks"]) == (None, None, [])
    assert built_text({}) == ""
