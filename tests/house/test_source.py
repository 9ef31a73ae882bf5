"""The source follows the house rules; each rule detects a planted breach."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.house import rules
from tests.support.source import PACKAGE, ROOT, Module, modules, parse, python_files

Rule = Callable[[Module], list[str]]

_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

_RULES: list[Rule] = [
    rules.libraries_away_from_home,
    rules.environment_reads,
    rules.branch_rows_outside_catalog,
    rules.view_writes,
    rules.iceberg_commits,
    rules.lakefs_changes,
    rules.prints,
    rules.refused_names,
    rules.docstring_words,
]

_PLANTED: list[tuple[Rule, str, str]] = [
    (rules.libraries_away_from_home, "builds/plan.py", "import sqlalchemy as sa"),
    (rules.libraries_away_from_home, "iceberg/app.py", "from pyiceberg.catalog import Catalog"),
    (rules.libraries_away_from_home, "store.py", "def f():\n    import pyspark.sql"),
    (rules.libraries_away_from_home, "store.py", "importlib.import_module('obstore.store')"),
    (rules.libraries_away_from_home, "files/put.py", "import psycopg"),
    (rules.libraries_away_from_home, "cli/serve.py", "from nicegui import ui"),
    (rules.environment_reads, "storage/local.py", "import os\nos.environ['HOME']"),
    (rules.environment_reads, "spark/session.py", "from os import getenv"),
    (rules.branch_rows_outside_catalog, "upkeep/a.py", "from headgate.catalog import schema"),
    (rules.branch_rows_outside_catalog, "a.py", "from headgate.catalog.schema import branches"),
    (rules.branch_rows_outside_catalog, "a.py", "run('UPDATE branches SET name = 1')"),
    (rules.view_writes, "catalog/branches.py", "update(branches).values(view_id=x)"),
    (rules.view_writes, "catalog/branches.py", "insert(branches).values({'view_id': x})"),
    (rules.view_writes, "catalog/branches.py", "statement.values({branches.c.view_id: x})"),
    (rules.view_writes, "catalog/branches.py", "row['view_id'] = x"),
    (rules.view_writes, "catalog/branches.py", "rows.append(dict(id=y, view_id=x))"),
    (rules.view_writes, "catalog/transactions.py", "text('UPDATE branches\\n SET view_id = :x')"),
    (
        rules.view_writes,
        "catalog/transactions.py",
        "text(f'update {t} set head_id = 1, view_id = 2')",
    ),
    (rules.iceberg_commits, "spark/load.py", "table.append(rows)"),
    (rules.iceberg_commits, "upkeep/cleanup.py", "self._table.delete('id = 1')"),
    (rules.iceberg_commits, "rows/apply.py", "anything.upsert(rows)"),
    (rules.iceberg_commits, "tables/writing.py", "self._table.append(rows)"),
    (rules.libraries_away_from_home, "tables/scan.py", "import duckdb"),
    (rules.libraries_away_from_home, "cli/rows.py", "from sqlglot import exp"),
    (rules.iceberg_commits, "rows/apply.py", "change.commit_transaction()"),
    (rules.lakefs_changes, "upkeep/cleanup.py", "self._lakefs.delete_branch(repository, name)"),
    (rules.lakefs_changes, "tasks/lifecycle.py", "lakefs.merge('songs', 'a', 'b')"),
    (rules.lakefs_changes, "store/embedded.py", "LakeFS(url).commit('songs', 'a', 'b', 'c')"),
    (
        rules.lakefs_changes,
        "worker/attempt.py",
        "api.merge_into_branch('songs', 'a', 'b')",
    ),
    (rules.lakefs_changes, "rows/load.py", "api.hard_reset_branch('songs', 'main', ref)"),
    (
        rules.lakefs_changes,
        "lakefs/endpoint.py",
        "sdk.commits_api.commit('songs', 'main', made)",
    ),
    (rules.prints, "builds/plan.py", "print('hello')"),
    (rules.refused_names, "builds/utils.py", ""),
    (rules.refused_names, "core/plan.py", ""),
    (rules.docstring_words, "builds/plan.py", '"""Whether a job is fresh."""'),
    (rules.docstring_words, "builds/plan.py", 'def f():\n    """Return a job that nobody runs."""'),
]

_HARMLESS: list[tuple[Rule, str, str]] = [
    (rules.libraries_away_from_home, "catalog/records.py", "import sqlalchemy"),
    (rules.libraries_away_from_home, "spark/session.py", "from pyspark.sql import SparkSession"),
    (rules.environment_reads, "settings.py", "import os\nos.environ['HEADGATE_URL']"),
    (rules.branch_rows_outside_catalog, "cli/branch.py", "branches = catalog.list_branches()"),
    (rules.view_writes, "catalog/publish.py", "update(branches).values(view_id=x)"),
    (rules.view_writes, "catalog/records.py", "select(branches.c.view_id).where(c.view_id == x)"),
    (rules.view_writes, "catalog/records.py", "Branch(view=row.view_id)"),
    (rules.iceberg_commits, "builds/plan.py", "jobs.append(job)\nstorage.delete(key)"),
    (rules.lakefs_changes, "tasks/lakefs_store.py", "self._lakefs.merge('songs', 'a', 'b')"),
    (rules.lakefs_changes, "rows/merge.py", "target.merge(source)\nbranch.delete()"),
    (rules.lakefs_changes, "store/embedded.py", "self._lakefs.load_head('songs', 'main')"),
    (rules.prints, "cli/demo.py", "print('hello')"),
    (rules.docstring_words, "builds/plan.py", 'def f():\n    """Return what a job reads."""'),
]


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.__name__)
def test_source_under_each_rule_has_no_finding(rule: Rule) -> None:
    findings = [finding for module in modules() for finding in rule(module)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(("rule", "path", "text"), _PLANTED)
def test_rule_on_planted_breach_finds_it(rule: Rule, path: str, text: str) -> None:
    assert rule(parse(path, text))


@pytest.mark.parametrize(("rule", "path", "text"), _HARMLESS)
def test_rule_on_harmless_code_is_silent(rule: Rule, path: str, text: str) -> None:
    assert rule(parse(path, text)) == []


def test_source_walk_reaches_the_known_rooms() -> None:
    assert {"catalog", "model", "errors"} <= {module.room for module in modules()}
    assert PACKAGE.joinpath("catalog", "publish.py").is_file()


def test_python_file_of_any_kind_has_no_unfinished_mark() -> None:
    marked = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if _UNFINISHED.search(line)
    ]
    assert not marked
