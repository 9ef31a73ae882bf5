"""Text in a page cannot become HTML."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from headgate.model.ids import Instant
from headgate.server.web import markup
from headgate.server.web.markup import (
    ago,
    badge,
    cell,
    code,
    command,
    count,
    empty,
    heading,
    join,
    lasted,
    link,
    prose,
    tag,
)


def test_tag_with_hostile_text_and_attribute_escapes_both() -> None:
    drawn = tag("a", "<script>", title='"><img>', href="/x")
    assert drawn == '<a title="&#34;&gt;&lt;img&gt;" href="/x">&lt;script&gt;</a>'


@given(st.text())
def test_join_of_any_text_has_no_element_and_loses_nothing(text: str) -> None:
    drawn = join(text)
    assert "<" not in drawn and ">" not in drawn
    assert unescape(drawn) == text


@given(st.text())
def test_attribute_of_any_text_stays_in_its_quotes_and_loses_nothing(text: str) -> None:
    opening = tag("i", title=text).removesuffix("</i>")
    value = opening.removeprefix('<i title="').removesuffix('">')
    assert not set("<>\"'") & set(value)
    assert unescape(value) == text


def test_markup_as_an_attribute_is_escaped_like_text() -> None:
    drawn = tag("i", title=tag("b", '"', id="x"))
    assert drawn == '<i title="&lt;b id=&#34;x&#34;&gt;&amp;#34;&lt;/b&gt;"></i>'


def test_text_added_to_markup_is_escaped() -> None:
    assert tag("b", "x") + "<script>" == "<b>x</b>&lt;script&gt;"
    assert tag("p", tag("b", "x") + "<script>") == "<p><b>x</b>&lt;script&gt;</p>"
    # Formatting returns text, which is escaped again rather than trusted.
    assert tag("p", f"{tag('b', 'x')}<script>") == ("<p>&lt;b&gt;x&lt;/b&gt;&lt;script&gt;</p>")


@pytest.mark.parametrize("part", [cell, code, command, badge, prose, heading, empty])
def test_part_of_a_page_with_hostile_text_escapes_it(part: Callable[[str], Markup]) -> None:
    hostile = "<img src=x onerror='alert(1)'>\"&"
    for text in (hostile, hostile * 100):
        drawn = part(text)
        assert isinstance(drawn, Markup)
        assert "<img" not in drawn and "onerror='" not in drawn


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
    assert told.startswith("There is no &#39;&lt;b&gt;&#39;. <code>headgate dataset list</code>")
    assert prose("a lone ` stays") == "A lone ` stays"
