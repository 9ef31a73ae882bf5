"""Logic hashes: equal for transforms that compute the same, however their code is laid out.

A hash covers the transform's module, every project module that it imports, its data files, lock
files and declaration. Python source counts in a normal form, without layout, comments and
docstrings. The normal form is made of tokens, not of Python's AST dump, so that it is the same for
every Python that can read the source. A difference that remains only makes a job run again.
"""

import ast
import io
import keyword
import re
import token
import tokenize
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.builds.bundle import module_name, python_files
from headgate.errors import InvalidDefinition
from headgate.model.ids import digest
from headgate.model.jobspecs import Declaration
from headgate.transforms.discovery import SOURCE_LAYOUT, import_roots

# --- projects -------------------------------------------------------------------------------

_LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml")
_LOCK_PATTERNS = ("requirements*.txt",)
_TIME = {"current_timestamp", "current_date", "localtimestamp", "now", "today", "utcnow"}
_CHANCE = {"rand", "randn", "uuid", "uuid1", "uuid4", "monotonically_increasing_id"}
# Functions of Python's and NumPy's `random` that make the rest repeatable.
_SEEDED = {"seed", "Random", "default_rng", "RandomState"}
_PANDAS_READERS = {
    "read_csv",
    "read_excel",
    "read_feather",
    "read_json",
    "read_orc",
    "read_parquet",
}
_READERS = {"csv", "jdbc", "json", "load", "orc", "parquet", "table", "text", "textFile", "xml"}
# The attribute of an input that has the path of its files for Spark.
_INPUT_PATH = "hadoop_path"
_IN_SQL = re.compile(
    r"\b(current_timestamp|current_date|localtimestamp|now|rand|randn|uuid)\s*\(", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A line whose result may differ for equal logic and inputs."""

    file: str
    line: int
    what: str


@dataclass(frozen=True, kw_only=True)
class _Module:
    file: str
    digest: str
    imports: tuple[str, ...]
    tree: ast.Module


class Project:
    """The Python modules of an exported tree, read once, by name."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._roots = import_roots(tree)
        source_layout = len(self._roots) > 1
        self._files: dict[str, str] = {}
        # In reverse, so that of two files with one name the first import root wins.
        for file in reversed(python_files(tree)):
            name = module_name(file, source_layout=source_layout)
            if name is not None and (
                name not in self._files or file.startswith(f"{SOURCE_LAYOUT}/")
            ):
                self._files[name] = file
        self._modules: dict[str, _Module] = {}
        self._locks = _locked_versions(tree)

    def hashes(self, declared: Declaration) -> tuple[str, str]:
        """Return the logic hash, and that of the code alone, without the locked dependencies.

        They do not depend on the project's path or on the Python version.
        """
        modules = {name: self._module(name).digest for name in self.reached_from(declared.module)}
        data = {
            self._importable(file): digest((self._tree / file).read_bytes().hex())
            for file in self.data_files(declared)
        }
        facts = _hashed_facts(declared)
        logic = digest(["logic-1", modules, data, sorted(self._locks), facts])
        return logic, digest(["code-1", modules, data, facts])

    def reached_from(self, module: str) -> list[str]:
        """Return the module and every project module that it imports, directly or not; sorted."""
        reached: set[str] = set()
        waiting = [name for name in _with_packages(module) if name in self._files]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(self._module(name).imports)
        return sorted(reached)

    def data_files(self, declared: Declaration) -> list[str]:
        """Return the files of `bundle_data`; raise if a pattern matches none."""
        found: set[str] = set()
        for pattern in declared.bundle_data:
            matched = [path for path in self._tree.glob(pattern) if path.is_file()]
            if not matched:
                raise InvalidDefinition(
                    file=declared.file,
                    line=declared.line,
                    reason=f"bundle_data {pattern!r} matches no committed file; paths are relative "
                    "to the repository's root",
                )
            found.update(path.relative_to(self._tree).as_posix() for path in matched)
        return sorted(found)

    def suspicions(self, modules: Collection[str]) -> tuple[Suspicion, ...]:
        """Return lines reached from these modules that depend on time, chance or other data."""
        reached = sorted({name for module in modules for name in self.reached_from(module)})
        return tuple(
            Suspicion(file=module.file, line=line, what=what)
            for module in map(self._module, reached)
            for line, what in sorted(set(_suspicious(module.tree)))
        )

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            self._modules[name] = self._read(name, self._files[name])
        return self._modules[name]

    def _read(self, name: str, file: str) -> _Module:
        path = self._tree / file
        try:
            text, tree = parsed(path)
            words: Any = normal_form(text, tree)
        except (SyntaxError, ValueError, tokenize.TokenError):
            # Not imported so far, or for another Python version: any change counts.
            tree, words = ast.Module(body=[], type_ignores=[]), path.read_bytes().hex()
        package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
        named = {
            found
            for wanted in _imports(tree, package)
            for found in _with_packages(wanted)
            if found in self._files
        }
        return _Module(file=file, digest=digest(words), imports=tuple(sorted(named)), tree=tree)

    def _importable(self, file: str) -> str:
        """Return a data file's path below its import root: equal in flat and `src` layouts."""
        return file.removeprefix(f"{SOURCE_LAYOUT}/") if len(self._roots) > 1 else file


def _hashed_facts(declared: Declaration) -> dict[str, Any]:
    """Return the parts of a declaration that shape the result, without place and run options."""
    data = declared.to_json()
    for name in ("file", "line", "fresh", "bundle_data", "allowed_run_seconds", "allow_empty"):
        del data[name]
    for part in (*data["inputs"], *data["outputs"], *data["parameters"]):
        del part["description"]
        for check in part.get("checks", ()):
            del check["description"]
    return data


def _with_packages(name: str) -> list[str]:
    """Return a module's name and those of its packages, whose code runs first."""
    parts = name.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Return the full name of every module that the code may import, in functions too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                start = _absolute(node, package)
                if start:
                    yield start
                yield from (f"{start}.{a.name}" if start else a.name for a in node.names)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                # importlib.import_module("a.b") and __import__("a.b").
                if _last_name(node.func) in {"import_module", "__import__"}:
                    yield name


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, node.module] if node.module else kept)


def _suspicious(tree: ast.Module) -> Iterator[tuple[int, str]]:
    declared = _names_of_inputs(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if found := _IN_SQL.search(node.value):
                yield node.lineno, f"{found[1].lower()}() in SQL"
        elif isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name in _TIME:
                yield node.lineno, f"{name}() depends on the time"
            elif name in _CHANCE or (name not in _SEEDED and _draws(node.func)):
                yield node.lineno, f"{name}() depends on chance"
            elif (
                name in _READERS
                and _is_chained_on(node.func, {"read", "readStream"})
                and not _mentions(node, declared)
            ):
                yield node.lineno, f"read.{name}() reads data that no Input declares"
            elif name in _PANDAS_READERS and _names_a_path(node):
                yield node.lineno, f"{name}() reads data that no Input declares"


def _draws(function: ast.expr) -> bool:
    """Return True for a call of Python's or NumPy's `random` without a seed."""
    return _is_chained_on(function, {"random"}) and not _is_chained_on(function, _SEEDED)


def _names_a_path(call: ast.Call) -> bool:
    """Return True if the first argument is a text; files of an input are passed open."""
    return any(
        isinstance(first, ast.JoinedStr)
        or (isinstance(first, ast.Constant) and isinstance(first.value, str))
        for first in call.args[:1]
    )


def _is_chained_on(function: ast.expr, names: Collection[str]) -> bool:
    """Return True if a name is in the chain of a call, as `read` in `….read.format(…).load()`."""
    while isinstance(function, ast.Attribute | ast.Call):
        function = function.value if isinstance(function, ast.Attribute) else function.func
        if _last_name(function) in names:
            return True
    return False


def _names_of_inputs(tree: ast.Module) -> set[str]:
    """Return the names of variables that derive from the path of a declared input."""
    names: set[str] = set()
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    # A variable derives only from those assigned above it.
    for node in sorted(assigned, key=lambda node: node.lineno):
        if _mentions(node.value, names):
            targets = (each for target in node.targets for each in ast.walk(target))
            names.update(each.id for each in targets if isinstance(each, ast.Name))
    return names


def _mentions(code: ast.expr, names: set[str]) -> bool:
    """Return True if the code uses `hadoop_path`, or one of the names."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == _INPUT_PATH)
        or (isinstance(node, ast.Name) and node.id in names)
        for node in ast.walk(code)
    )


def _last_name(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _locked_versions(tree: Path) -> set[str]:
    """Return the digests of the lock files at the root, without their comments."""
    files = [tree / name for name in _LOCK_FILES]
    files += [path for pattern in _LOCK_PATTERNS for path in tree.glob(pattern)]
    return {digest(_without_comments(path)) for path in files if path.is_file()}


def _without_comments(path: Path) -> list[str]:
    lines = path.read_text("utf-8", "replace").splitlines()
    # As pip reads them: '#' begins a comment only at a line's start or after a space.
    stripped = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines)
    return [line for line in stripped if line]


# --- normal form ----------------------------------------------------------------------------

Position = tuple[int, int]
Word = tuple[str, str]

_DROPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_STRUCTURE = {tokenize.NEWLINE: "newline", tokenize.INDENT: "indent", tokenize.DEDENT: "dedent"}
# A formatted string is many tokens from Python 3.12 on, and one token before.
_FORMATTED_STARTS = {
    number for name, number in vars(token).items() if name in {"FSTRING_START", "TSTRING_START"}
}
_FORMATTED_ENDS = {
    number for name, number in vars(token).items() if name in {"FSTRING_END", "TSTRING_END"}
}
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def parsed(path: Path) -> tuple[str, ast.Module]:
    """Return a file's text, decoded and with plain line ends, and its syntax tree."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    with warnings.catch_warnings():
        # The import of the module shows warnings about escapes.
        warnings.simplefilter("ignore")
        return text, ast.parse(text, filename=str(path))


def normal_form(text: str, tree: ast.Module) -> list[Word]:
    """Return the words of a module, kind and spelling, without what changes no meaning."""
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
    """Return the positions at which docstrings of the module, classes and functions begin."""
    found: set[Position] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                    # The tree counts bytes, tokens count characters.
                    before = lines[text.lineno - 1].encode()[: text.col_offset].decode()
                    found.add((text.lineno, len(before)))
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
    """Join adjacent literals into one."""
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
    """Turn `from a import (b, c)` into `from a import b, c`."""
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
    """Drop a comma before a closing bracket, except where it makes a tuple."""
    kept: list[Word] = []
    # Of each open bracket: 1 if a trailing comma has no meaning there, and its commas so far.
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
    """Return True in a set, dict, list, call or definition, not in a tuple or subscript."""
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
    """Keep line ends only between statements: Python versions end a file differently."""
    kept: list[Word] = []
    for word in words:
        if word[0] == "newline" and (not kept or kept[-1][0] in {"newline", "indent", "dedent"}):
            continue
        kept.append(word)
    while kept and kept[-1][0] in {"newline", "dedent"}:
        kept.pop()
    return kept
