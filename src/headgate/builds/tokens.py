"""Python source in a normal form: what is left when layout, comments and docstrings are gone.

Tokens, not Python's AST dump, so that the form is the same for every Python that can read the
source. A difference that remains only makes something be computed again.
"""

from __future__ import annotations

import ast
import io
import keyword
import token
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Position = tuple[int, int]
Word = tuple[str, str]

_DROPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_STRUCTURE = {tokenize.NEWLINE: "newline", tokenize.INDENT: "indent", tokenize.DEDENT: "dedent"}
# From Python 3.12 on a formatted string is many tokens; before, it was one.
_FORMATTED_STARTS = {
    number for name, number in vars(token).items() if name in {"FSTRING_START", "TSTRING_START"}
}
_FORMATTED_ENDS = {
    number for name, number in vars(token).items() if name in {"FSTRING_END", "TSTRING_END"}
}
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def parsed(path: Path) -> tuple[str, ast.Module]:
    """A file's text, with its declared encoding and plain line ends, and its syntax tree."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    with warnings.catch_warnings():
        # What the compiler thinks of the user's escapes is shown where the module is imported.
        warnings.simplefilter("ignore")
        return text, ast.parse(text, filename=str(path))


def normal_form(text: str, tree: ast.Module) -> list[Word]:
    """The words of a module: kind and spelling, without what does not change its meaning."""
    words = _without_docstrings(_words(text), _docstrings(tree, text.splitlines()))
    spelled = _joined_strings(_spelled(word) for word in words)
    return _without_line_noise(_without_trailing_commas(_without_import_brackets(list(spelled))))


@dataclass(frozen=True, kw_only=True)
class _Placed:
    kind: str
    text: str
    start: Position


def _words(text: str) -> Iterator[_Placed]:
    lines = text.splitlines(keepends=True)
    depth, begun = 0, (0, 0)
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        if found.type in _FORMATTED_STARTS:
            begun = found.start if depth == 0 else begun
            depth += 1
        elif found.type in _FORMATTED_ENDS:
            depth -= 1
            if depth == 0:
                yield _Placed(kind="formatted", text=_between(lines, begun, found.end), start=begun)
        elif depth == 0 and found.type not in _DROPPED:
            yield _Placed(kind=_kind(found), text=found.string, start=found.start)


def _kind(found: tokenize.TokenInfo) -> str:
    if found.type in _STRUCTURE:
        return _STRUCTURE[found.type]
    if found.type == tokenize.STRING:
        prefix = found.string[: found.string.index(found.string[-1])].lower()
        return "formatted" if set(prefix) & {"f", "t"} else "string"
    return "number" if found.type == tokenize.NUMBER else "word"


def _between(lines: list[str], start: Position, end: Position) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    middle = lines[start[0] : end[0] - 1]
    return "".join([lines[start[0] - 1][start[1] :], *middle, lines[end[0] - 1][: end[1]]])


def _docstrings(tree: ast.Module, lines: list[str]) -> set[Position]:
    """Where the docstring of the module and of each class and function begins and what it spans."""
    found: set[Position] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as said), *_]:
                    # The tree counts bytes, tokens count characters.
                    before = lines[said.lineno - 1].encode()[: said.col_offset].decode()
                    found.add((said.lineno, len(before)))
    return found


def _without_docstrings(words: Iterable[_Placed], docstrings: set[Position]) -> Iterator[_Placed]:
    skipping = False
    for word in words:
        if word.kind == "string" and word.start in docstrings:
            skipping = True
        elif skipping and (word.kind == "newline" or word.text == ";"):
            skipping = False
        elif not (skipping and word.kind == "string"):
            skipping = False
            yield word


def _spelled(word: _Placed) -> Word:
    if word.kind == "string":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(word.text)
        if isinstance(value, bytes):
            return "bytes", value.hex()
        return "string", value
    if word.kind == "number":
        return "number", word.text.lower().replace("_", "")
    return word.kind, "" if word.kind in _STRUCTURE.values() else word.text


def _joined_strings(words: Iterable[Word]) -> Iterator[Word]:
    """Adjacent literals are one literal."""
    last: Word | None = None
    for kind, text in words:
        if last is not None and kind == last[0] and kind in {"string", "bytes"}:
            last = (kind, last[1] + text)
            continue
        if last is not None:
            yield last
        last = (kind, text)
    if last is not None:
        yield last


def _without_import_brackets(words: list[Word]) -> list[Word]:
    """`from a import (b, c)` is `from a import b, c`."""
    kept: list[Word] = []
    inside = False
    for word in words:
        if word == ("word", "(") and kept and kept[-1] == ("word", "import"):
            inside = True
        elif inside and word == ("word", ")"):
            inside = False
            if kept[-1] == ("word", ","):
                kept.pop()
        else:
            kept.append(word)
    return kept


def _without_trailing_commas(words: list[Word]) -> list[Word]:
    """Drops a comma before a closing bracket wherever it does not make a tuple."""
    kept: list[Word] = []
    # Of each open bracket: whether a last comma means nothing there, and commas seen so far.
    open_brackets: list[list[int]] = []
    for word in words:
        text = word[1] if word[0] == "word" else ""
        if text in _OPENING and text:
            open_brackets.append([_comma_is_free(text, kept), 0])
        elif text == "," and open_brackets:
            open_brackets[-1][1] += 1
        elif text in _CLOSING and text:
            free, commas = open_brackets.pop()
            if kept[-1] == ("word", ",") and (free or commas > 1):
                kept.pop()
        kept.append(word)
    return kept


def _comma_is_free(bracket: str, before: list[Word]) -> bool:
    """A set or dict, a list, a call or a definition; not a tuple, not a subscript."""
    kind, text = before[-1] if before else ("newline", "")
    follows_value = (
        kind in {"string", "formatted"}
        or text in _CLOSING - {""}
        or (kind == "word" and text.isidentifier() and not keyword.iskeyword(text))
    )
    return (
        bracket == "{"
        or (bracket == "[" and not follows_value)
        or (bracket == "(" and follows_value)
    )


def _without_line_noise(words: list[Word]) -> list[Word]:
    """Line ends only between statements, for Pythons differ in how they end a file."""
    kept: list[Word] = []
    for word in words:
        if word[0] == "newline" and (not kept or kept[-1][0] in {"newline", "indent", "dedent"}):
            continue
        kept.append(word)
    while kept and kept[-1][0] in {"newline", "dedent"}:
        kept.pop()
    return kept
