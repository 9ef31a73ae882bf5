"""The check of a JSON text before it is parsed: how many values it has, and how deep they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import MalformedRequest
from headgate.server.api.conventions import parse_document
from headgate.tables import metadata
from headgate.tables.metadata import check_document

TEXTS = st.text(st.sampled_from('[]{},:"\\\u00e9 a'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_container = isinstance(value, dict | list)
    return int(is_container) + max((_depth(item) for item in inner), default=0)


def _values(value: Any) -> int:
    """Return the commas and containers of a value."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values() if isinstance(value, dict) else value)
    return 1 + max(len(inner) - 1, 0) + sum(_values(item) for item in inner)


@given(value=VALUES, escaped=st.booleans(), part_bytes=st.integers(1, 9))
def test_check_agrees_with_the_parsed_value(value: Any, escaped: bool, part_bytes: int) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metadata, "_PART_BYTES", part_bytes)
        for limit, number in (("_MOST_DEPTH", _depth(value)), ("_MOST_VALUES", _values(value))):
            with pytest.MonkeyPatch.context() as limited:
                limited.setattr(metadata, limit, number)
                check_document(body)
                if number:
                    limited.setattr(metadata, limit, number - 1)
                    with pytest.raises(MalformedRequest):
                        check_document(body)


@given(value=VALUES)
def test_document_is_parsed_as_json_parses_it(value: Any) -> None:
    assert parse_document(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * 101 + b"]" * 101, "more than 100 levels"),
        (b"[" * 100_000, "more than 100 levels"),
        (b"[" + b"0," * 600_000 + b"0]", "more than 250000 values"),
        (b"9" * 5000, "4300 digits"),
        (b"[NaN]", "JSON has no NaN"),
        (b'[{"a": 1, "b": 2, "a": 3}]', "the key 'a' twice"),
        (b'"\\ud800"'.replace(b"\\ud800", b"\xed\xa0\x80"), "utf-8"),
        ("[1]".encode("utf-16"), "utf-8"),
    ],
)
def test_document_that_is_refused_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        parse_document(body)


def test_number_beyond_64_bits_stays_exact() -> None:
    assert parse_document(b"123456789012345678901234567890") == 123456789012345678901234567890
