"""Measures the layout of the package: sizes, names and the depth of its imports.

Pure functions over parsed modules, so that tests can show that each rule finds a planted breach.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from tests.support.source import Module

# Names that users import or that a convention fixes.
PUBLIC_STEMS = {"testing"}
SMALL_LINES = 60

# One noun, or one verb that users type, in more than one room.
SHARED_STEMS = {
    "app": "ASGI applications: of the server, and of the Iceberg catalog",
    "attempt": "an attempt of a job, and the process of one of a task",
    "attempts": "attempts in the catalog, and how their transactions commit",
    "builds": "builds in the catalog, the server, its routes and its client",
    "checks": "results of checks, and checks evaluated by Spark",
    "constraints": "constraints as values, and as properties of a table",
    "datasets": "datasets in the catalog, the store, the routes and the client",
    "delegation": "access to a bucket, and who gets it to which table",
    "diff": "differences of tables, and of any two versions",
    "failpoints": "where a process may be stopped, and how a test stops it",
    "files": "files of a dataset: the command and the routes",
    "job": "a job of a build, and its process on Spark",
    "jobspecs": "JobSpecs as values, in the catalog and as a command",
    "load": "the verb: by Arrow, and by Spark",
    "log": "publications in the catalog, and the command",
    "overview": "summaries in the catalog, and of the store for pages",
    "project": "a project that is published, and one under test",
    "recovery": "the rules of recovery, and recovery in the catalog",
    "rows": "rows of tables: values, errors, verbs, routes, commands",
    "rules": "rules of rows as values, and their validation",
    "tasks": "workspace tasks: routes and client",
    "transactions": "transactions in the catalog, and in the store",
    "views": "views as documents, and the handlers of Iceberg requests for them",
}

Rule = Callable[[Iterable[Module]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Figures that the house test prints and keeps."""

    modules: int
    lines: int
    median_lines: int
    p90_lines: int
    longest_module: tuple[str, int]
    modules_per_thousand_lines: float
    import_share: float
    longest_chain: tuple[str, ...]

    def table(self) -> str:
        rows = {
            "modules": f"{self.modules}",
            "lines": f"{self.lines:,}",
            "lines per module, median / p90 / max": (
                f"{self.median_lines} / {self.p90_lines} / {self.longest_module[1]}"
                f" ({self.longest_module[0]})"
            ),
            "modules per 1,000 lines": f"{self.modules_per_thousand_lines:.1f}",
            "share of code lines that are imports": f"{self.import_share:.1%}",
            "longest import chain": f"{len(self.longest_chain)}",
        }
        chain = "  " + " > ".join(self.longest_chain)
        return "\n".join([*(f"{name:<40} {value}" for name, value in rows.items()), chain])


def measure(modules: Iterable[Module]) -> Layout:
    """Return the figures of these modules; empty `__init__` files do not count."""
    counted = [module for module in modules if module.text.strip()]
    sizes = sorted((_line_count(module), module.path) for module in counted)
    lengths = [lines for lines, _ in sizes]
    total = sum(lengths)
    named = [module for module in counted if _stem(module.path) != "__init__"]
    return Layout(
        modules=len(named),
        lines=total,
        median_lines=int(median(lengths)),
        p90_lines=lengths[int(len(lengths) * 0.9)],
        longest_module=(sizes[-1][1], sizes[-1][0]),
        modules_per_thousand_lines=1000 * len(named) / total,
        import_share=import_share(counted),
        longest_chain=longest_chain(import_graph(counted)),
    )


def import_share(modules: Iterable[Module]) -> float:
    """Return the lines of import statements as a share of all lines of code."""
    code = imports = 0
    for module in modules:
        code += len(_code_lines(module))
        imports += len(_import_lines(module.tree))
    return imports / code


def gerund_stems(modules: Iterable[Module]) -> list[str]:
    """Return modules named with a bare -ing word."""
    return [
        module.path
        for module in modules
        if (stem := _stem(module.path)).endswith("ing") and stem not in PUBLIC_STEMS
    ]


def repeated_stems(modules: Iterable[Module]) -> list[str]:
    """Return names of modules with two meanings, unless listed as one noun in two rooms."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        if (stem := _stem(module.path)) not in {"__init__", "__main__"}:
            places[stem].append(module.path)
    return [
        f"{stem}: {', '.join(paths)}"
        for stem, paths in sorted(places.items())
        if len(paths) > 1 and stem not in SHARED_STEMS
    ]


def slivers(modules: Iterable[Module]) -> list[str]:
    """Return short modules with a single importer in their own room, where they belong."""
    modules = list(modules)
    lengths = {_name(module.path): _line_count(module) for module in modules}
    importers: Counter[str] = Counter()
    only: dict[str, str] = {}
    for importer, imported in import_graph(modules, every=True).items():
        for name in imported:
            importers[name] += 1
            only[name] = importer
    return sorted(
        name
        for name, lines in lengths.items()
        if 0 < lines < SMALL_LINES
        and importers[name] == 1
        and name.rpartition(".")[0] == only[name].rpartition(".")[0]
        and not name.endswith("__init__")
    )


def import_graph(modules: Iterable[Module], *, every: bool = False) -> dict[str, set[str]]:
    """Return the imports of each module at load; `every` adds imports in functions."""
    modules = list(modules)
    names = {_name(module.path) for module in modules}
    return {
        _name(module.path): {
            target
            for node in _imports(module.tree, every=every)
            for target in _targets(node, names)
            if target != _name(module.path)
        }
        for module in modules
    }


def longest_chain(graph: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Return the longest path through the imports."""

    @cache
    def below(name: str) -> tuple[str, ...]:
        return (name, *max((below(other) for other in graph[name]), key=len, default=()))

    return max((below(name) for name in graph), key=len)


def _imports(tree: ast.AST, *, every: bool) -> Iterable[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif every or not (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        ):
            yield from _imports(node, every=every)


def _is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _targets(node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterable[str]:
    if isinstance(node, ast.Import):
        dotted = [alias.name for alias in node.names]
    else:
        dotted = [f"{node.module}.{alias.name}" for alias in node.names]
    for text in dotted:
        inner = text.removeprefix("headgate.")
        if text == inner:
            continue
        for candidate in (inner, inner.rpartition(".")[0]):
            if candidate in names:
                yield candidate
                break


def _name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _stem(path: str) -> str:
    return path.removesuffix(".py").rpartition("/")[2]


def _line_count(module: Module) -> int:
    return len(module.text.splitlines())


def _code_lines(module: Module) -> set[int]:
    documentation = {
        line
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return {
        number
        for number, line in enumerate(module.text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in documentation
    }


def _import_lines(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
