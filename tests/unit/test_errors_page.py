"""Every error fills its template, and the page on errors is generated from the errors."""

from __future__ import annotations

from string import Formatter
from typing import Any

import pytest

from headgate.errors import (
    BucketMissing,
    HeadgateError,
    HolderExpired,
    InvalidChain,
    InvalidSource,
    OpenTransactionAlreadyExists,
    PublishFenceRefused,
    TableNotFound,
    kinds,
)
from tools.make_errors import TARGET, make_errors

_VALUES: dict[str, Any] = {"int": 1, "float": 1.5, "Sequence[str]": ("one", "two")}
TEMPLATES = [kind for kind in kinds() if kind.__signature__ is not None]


def test_page_on_errors_is_up_to_date() -> None:
    assert TARGET.read_text() == make_errors(), "run `make docs`"


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_error_of_every_kind_has_a_sentence_or_a_description(kind: type[HeadgateError]) -> None:
    text = vars(kind).get("__doc__") or kind.template
    assert text.split("\n")[0].endswith((".", "}"))


@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.__name__)
def test_template_of_every_error_is_filled_from_its_fields(kind: type[HeadgateError]) -> None:
    assert kind.__signature__ is not None
    types = {name: field.annotation for name, field in kind.__signature__.parameters.items()}
    unlisted = {name for name, type_ in types.items() if type_.startswith("InitVar")}
    error = kind(**{name: _VALUES.get(type_, f"<{name}>") for name, type_ in types.items()})
    shown = {name for _, name, _, _ in Formatter().parse(kind.template) if name}
    assert "{" not in error.message
    assert set(error.facts) == types.keys() - unlisted
    assert unlisted <= shown


def test_error_with_a_missing_or_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'context'"):
        TableNotFound(table="a.b")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'branch'"):
        TableNotFound(table="a.b", context="m", branch="x")  # type: ignore[call-arg]


def test_default_of_an_inherited_field_is_the_one_of_the_subclass() -> None:
    error = BucketMissing(where="s3://b")
    assert error.facts == {"where": "s3://b"}
    assert "s3://b failed: the bucket does not exist. " in error.message


def test_subclass_with_an_init_of_its_own_fills_the_inherited_template() -> None:
    refusal = OpenTransactionAlreadyExists(
        dataset="a.b", branch="m", transaction="t-1", holder="ana", lease_left_seconds=0
    )
    error = HolderExpired(refusal, wanted_by="bo")
    assert (error.to_json(), error.wanted_by) == (refusal.to_json(), "bo")
    assert "held by ana; its lease has expired." in error.message


def test_template_joins_a_list_with_its_separator() -> None:
    error = InvalidChain(chain=("a", "b", "a"), repeated="a")
    assert "the chain a > b > a names 'a' twice" in error.message
    assert error.facts["chain"] == ["a", "b", "a"]


@pytest.mark.parametrize("reason", ["it is empty", "it is empty.", "is it empty?"])
def test_template_ends_a_clause_with_one_mark(reason: str) -> None:
    message = InvalidSource(file="a.csv", reason=reason).message
    expected = "is it empty?" if "?" in reason else "it is empty."
    assert message == f"a.csv cannot be loaded: {expected}"


def test_template_writes_an_absent_value_as_none() -> None:
    error = PublishFenceRefused(repository="r", branch="b", input_ref="i", head=None, why="w")
    assert "is at none, not at the input i, and w." in error.message
    assert error.facts["head"] is None
