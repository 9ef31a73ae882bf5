"""The model of the door and its page agree with each other and with the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.source import ROOT

MODELS = sorted((ROOT / "model").glob("*.als"))
PAGE = ROOT / "docs" / "model.md"
_FUNCTION = re.compile(r"`(headgate(?:\.\w+)+)\.(\w+)`")


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    part = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def actions(text: str) -> set[str]:
    """Return the predicates from which the steps of a model are made."""
    body = text.split("pred step {")[1].split("\nfact ")[0]
    declared = set(re.findall(r"^pred (\w+)", text, re.MULTILINE))
    return (declared & set(re.findall(r"\w+", body))) - {"stutter"}


def unchecked(text: str) -> set[str]:
    """Return rules without a broken twin, and promises without a check or without a broken twin."""
    listed = text.split("one sig", 1)[1].split("extends Rule")[0]
    rules = set(re.findall(r"\w+", listed))
    twins = set(re.findall(r"check Twin\w+ \{ without\[(\w+)\] .* expect 1", text))
    promised = set(re.findall(r"implies (\w+) \} for .* expect 1", text))
    checked = set(re.findall(r"\{ sound implies (\w+) \} for .* expect 0", text))
    return (rules - twins) | (promised ^ checked)


def missing_functions(cell: str) -> list[str]:
    """Return the functions that a cell names and the source does not define."""
    return [
        f"{module}.{name}"
        for module, name in _FUNCTION.findall(cell)
        if name not in _defined(ROOT / "src" / (module.replace(".", "/") + ".py"))
    ]


def _defined(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_page_lists_every_action_of_a_model_and_no_other(model: Path) -> None:
    named = [
        re.findall(r"`(\w+)`", row[1]) for row in _rows("Actions and code") if row[0] == model.stem
    ]
    assert {name for names in named for name in names} == actions(model.read_text())


def test_every_action_names_functions_that_exist_or_says_what_it_is() -> None:
    for model, action, function in _rows("Actions and code"):
        assert function, f"{model}: {action} has no function"
        assert missing_functions(function) == []


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_every_rule_of_a_model_has_a_broken_twin_and_every_promise_a_check(model: Path) -> None:
    text = model.read_text()
    assert unchecked(text) == set()
    listed = [row[2] for row in _rows("Rules and broken twins") if row[0] == model.stem]
    rules = set(re.findall(r"\w+", text.split("one sig", 1)[1].split("extends Rule")[0]))
    assert rules == set(re.findall(r"`(\w+)`", " ".join(listed)))


def test_planted_breaches_are_found() -> None:
    text = MODELS[0].read_text()
    assert "plant" in actions(
        text.replace("pred step {", "pred plant { }\npred step {\n  plant or")
    )
    rule = re.search(r"without\[(\w+)\] imp", text)
    assert rule is not None
    without = "\n".join(line for line in text.splitlines() if f"without[{rule[1]}] imp" not in line)
    assert rule[1] in unchecked(without)
    untwinned = text.replace("expect 1", "expect 0")
    assert len(unchecked(untwinned)) > 1
    assert missing_functions("`headgate.catalog.publish.no_such`") == [
        "headgate.catalog.publish.no_such"
    ]
