"""What goes into a page cannot break out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ids import Instant
from headgate.server.web import markup
from headgate.server.web.markup import (
    Markup,
    ago,
    cell,
    count,
    join,
    lasted,
    link,
    prose,
    size,
    tag,
)


def test_tag_with_hostile_text_and_attribute_escapes_both() -> None:
    drawn = tag("a", "<script>", title='"><img>', href="/x")
    assert drawn == '<a title="&quot;&gt;&lt;img&gt;" href="/x">&lt;script&gt;</a>'


@given(st.text())
def test_join_of_any_text_has_no_element_and_loses_nothing(text: str) -> None:
    from html import unescape

    drawn = join(text)
    assert "<" not in drawn and ">" not in drawn
    assert unescape(drawn) == text


def test_tag_nests_markup_and_leaves_out_what_says_nothing() -> None:
    inner = tag("b", "x", hidden=False, title=None, id="i")
    assert tag("p", [inner, None, "&"], data_sends=True) == (
        '<p data-sends><b id="i">x</b>&amp;</p>'
    )
    assert isinstance(inner, Markup)


def test_link_to_a_dataset_with_a_strange_name_stays_in_its_place() -> None:
    path = markup.dataset_at("a.`b/c?d`", branch="x&y", tab=None)
    assert path == "/datasets/a.%60b%2Fc%3Fd%60?branch=x%26y"
    assert link("n", path).count("<a ") == 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/datasets/a.b?x=1", "/datasets/a.b?x=1"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/x\r\nset-cookie: a", "/"),
        (None, "/"),
    ],
)
def test_local_path_never_leads_elsewhere(text: str | None, path: str) -> None:
    assert markup.local_path(text) == path


def test_pieces_tell_sizes_counts_and_times_as_people_do() -> None:
    second = 1_000_000
    assert (size(10), size(2048)) == ("10 B", "2.0 KiB")
    assert (count(1, "row"), count(1234, "row"), count(2, "branch")) == (
        "1 row",
        "1,234 rows",
        "2 branches",
    )
    assert ago(Instant(0), Instant(90 * second)) == "1 min ago"
    assert lasted(Instant(0), Instant(65 * second)) == "1 min 5 s"
    assert "null" in cell(None) and "…" in cell("x" * 500)


def test_prose_shows_commands_as_such_and_escapes_the_rest() -> None:
    told = prose("there is no '<b>'. `headgate dataset list` shows those there are.")
    assert told.startswith("There is no &#x27;&lt;b&gt;&#x27;. <code>headgate dataset list</code>")
    assert prose("a lone ` stays") == "A lone ` stays"
