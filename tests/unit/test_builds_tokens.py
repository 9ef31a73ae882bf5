"""Normal form of source: equal for equal meaning, and the same on every Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from headgate.builds.logic_hash import normal_form, parsed
from headgate.model.ids import digest

# Formatted strings are one token before Python 3.12 and many since; tokenizers also differ in
# the end of the file, trailing comments, form feeds and continued lines.
AWKWARD = '''
"""Module."""
x = f"{y!r:>{width}} {{literal}} {z['k']}" f'{ü}' "plain"
s = rf\'\'\'a
  {b +
   c}
\'\'\'
@decorate
class A(B,):
    """Class."""
    n: int = 0XFF_FF; m = 1_000E5

    async def f(self, *, a=(1,), **kw) -> None:
        """Function
        of two lines.""" ; return lambda: {**kw, "a": b"x" b"y"}
\f
if (n := 3) and \\
   not x: pass
match x:
    case {"a": [1, *_]}: ...
    # last words
# and the end'''


def form(source: str) -> list[tuple[str, str]]:
    return normal_form(source, ast.parse(source))


def test_normal_form_is_the_same_on_every_python() -> None:
    assert digest(form(AWKWARD)) == (
        "dcfdbd1b5784995e4d0166512fce7181a816530d6dc6d746430e806e83964b76"
    )


def test_formatted_string_is_its_source_text() -> None:
    assert form('x = f"{a!r:>{w}}" ')[2] == ("formatted", 'f"{a!r:>{w}}"')
    assert form("x = f'''{a\n}'''")[2] == ("formatted", "f'''{a\n}'''")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f(a, b)", "f(\n    a,\n    b,\n)"),
        ("f(a)", "f(a,)"),
        ("x = [a]", "x = [\n    a,\n]"),
        ("x = {1: 2}", "x = {1: 2,}"),
        ("x = (a, b)", "x = (a, b,)"),
        ("x = a[1, 2]", "x = a[1, 2,]"),
        ("from a import b, c", "from a import (\n    b,\n    c,\n)"),
        ("x = 'a'", 'x = """a"""'),
        ("x = 'ab'", "x = 'a' 'b'"),
        ("x = 'é'", "x = '\\xe9'"),
        ("x = 0xFF", "x = 0XfF"),
        ("x = 1\n", "x = 1"),
        ("x = 1\n", "# first\n\nx = 1\n# last"),
        ("def f():\n    return 1", "def f():\n\n  'doc'\n  # why\n  return 1\n\n"),
        ("class A:\n  'doc'\n  x = 1", "class A:\n  'doc' 'more'; x = 1"),
    ],
)
def test_difference_of_layout_is_none(one: str, other: str) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = (a)", "x = (a,)"),
        ("x = a[1]", "x = a[1,]"),
        ("return_ = not (a)", "return_ = not (a,)"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'a'", "x = f'a'"),
        ("x = 'a '", "x = 'a'"),
        ("x = '1'", "x = 1"),
        ("if a:\n  b\nc", "if a:\n  b\n  c"),
        ("f()\n'not a docstring'", "f()\n'another'"),
        ("x = a, 'b'", "x = a; 'b'"),
    ],
)
def test_difference_of_meaning_remains(one: str, other: str) -> None:
    assert form(one) != form(other)


def test_line_ends_byte_order_mark_and_encoding_do_not_count(tmp_path: Path) -> None:
    plain, odd, latin = (tmp_path / name for name in ("a.py", "b.py", "c.py"))
    plain.write_bytes("x = 'é'\ny = 1\n".encode())
    odd.write_bytes(b"\xef\xbb\xbf" + "x = 'é'\r\ny = 1\r\n".encode())
    latin.write_bytes("# coding: latin-1\nx = 'é'\ny = 1\n".encode("latin-1"))
    assert len({digest(normal_form(*parsed(path))) for path in (plain, odd, latin)}) == 1
