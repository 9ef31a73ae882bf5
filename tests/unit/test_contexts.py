"""Contexts, as text and as a URL prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidContext
from headgate.model.contexts import (
    BranchContext,
    Context,
    JobContext,
    MomentContext,
    UnitContext,
    decode_prefix,
    encode_prefix,
    is_writable,
    parse_context,
)
from headgate.model.ids import Instant, PublicationNumber


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("feature", BranchContext(chain=("feature",))),
        ("user/x > develop>master", BranchContext(chain=("user/x", "develop", "master"))),
        ("master@12", MomentContext(chain=("master",), at=PublicationNumber(12))),
        (
            "a>b@1970-01-01T00:00:01Z",
            MomentContext(chain=("a", "b"), at_time=Instant(1_000_000)),
        ),
        (
            "master@1970-01-01T02:00:00.000005+02:00",
            MomentContext(chain=("master",), at_time=Instant(5)),
        ),
        ("txn:u-1", UnitContext(id="u-1")),
        ("job:build-1/sales.daily", JobContext(id="build-1/sales.daily")),
    ],
)
def test_context_reads_and_its_own_text_means_the_same(text: str, context: Context) -> None:
    assert parse_context(text) == context
    assert parse_context(str(context)) == context


@pytest.mark.parametrize(
    "text",
    ["", ">master", "a>>b", "a>a", "../x", "a@", "a@-yesterday", "a@-1", "txn:", "job:a b", "é"],
)
def test_context_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidContext):
        parse_context(text)


def test_context_without_a_time_zone_is_utc() -> None:
    assert parse_context("m@2026-11-05T10:00") == parse_context("m@2026-11-05T10:00Z")


@pytest.mark.parametrize(("text", "writable"), [("a", True), ("txn:u", True), ("a@1", False)])
def test_moments_alone_cannot_be_written(text: str, writable: bool) -> None:
    assert is_writable(parse_context(text)) is writable


@given(
    chain=st.lists(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,9}", fullmatch=True), min_size=1, unique=True
    ).filter(lambda chain: len(chain) <= 32),
    client=st.from_regex(r"[a-z0-9]{0,8}", fullmatch=True),
)
def test_prefix_gives_back_context_and_client_and_needs_no_escaping(
    chain: list[str], client: str
) -> None:
    context = BranchContext(chain=tuple(chain))
    prefix = encode_prefix(context, client=client)
    assert decode_prefix(prefix) == (context, client)
    assert set(prefix) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@pytest.mark.parametrize(
    "prefix", ["", "master", "c-", "c-!!", "c-_w", "c-bWFzdGVy.", "c-bWFzdGVy.a b"]
)
def test_prefix_that_was_never_given_out_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidContext):
        decode_prefix(prefix)
