"""Declarations of tasks are checked when their module is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from headgate.errors import Invalid, InvalidDefinition, NotFound, UserCodeFailed
from headgate.tasks import PublishBudget, WorkspaceSpec, require_file, require_glob
from headgate.tasks.declare import RetryPolicy, TaskDefinition
from headgate.tasks.definitions import load_task, load_tasks, parse_target
from tests.support.task_modules import FAMILIAR, write_module

_HEAD = """
from pathlib import Path
from pydantic import BaseModel, RootModel
from headgate.tasks import *

class P(BaseModel):
    n: int = 1

class R(BaseModel):
    n: int

class Names(RootModel[list[str]]):
    pass

"""
_TASK = '@task(name="t", owner_email="a@b.c"{more})\n'
_SPACE = ", workspace=WorkspaceSpec()"


def _load(directory: Path, source: str) -> TaskDefinition:
    return load_task(parse_target(write_module(directory, source)), directory)


def test_declaration_of_a_familiar_module_loads_with_only_its_import_changed(
    tmp_path: Path,
) -> None:
    name = write_module(tmp_path, FAMILIAR, package="headgate.tasks")
    found = load_task(parse_target(name), tmp_path)
    assert found.name == "render_words" and found.strict_params and not found.strict_input
    assert found.workspace is not None and found.workspace.directory == "render/in"
    assert [str(check) for check in found.workspace.pre] == [
        "require_file('song.txt')",
        "require_dir('stems')",
        "forbid_glob('**/*.tmp')",
    ]
    assert found.controls.publish_budget is not None
    assert found.controls.publish_budget.reserve_seconds == 100
    assert found.controls.limits.concurrent_exec_limit == 4


@pytest.mark.parametrize(
    ("more", "function", "said"),
    [
        (_SPACE, "def f(params: P) -> R: ...", "requires (workspace, params)"),
        ("", "def f(workspace: Path, params: P) -> R: ...", "requires (params)"),
        (_SPACE, "def f(workspace: str, params: P) -> R: ...", "annotated as Path"),
        ("", "def f(params: dict) -> R: ...", "a pydantic model"),
        ("", "def f(params: P): ...", "a pydantic model, not None"),
        ("", "def f(params: Names) -> R: ...", "RootModel"),
        ("", "def f(params: 'Nope') -> R: ...", "cannot be resolved"),
        ("", "def f(params: P = P()) -> R: ...", "must not have a default"),
        ("", "def f(*, params: P) -> R: ...", "positional-or-keyword"),
        ("", "async def f(params: P) -> R: ...", "neither async"),
        ("", "def f(params: P, metrics: MetricRecorder) -> R: ...", "requires (params)"),
        (", metrics=MetricSpec()", "def f(params: P) -> R: ...", "requires (params, metrics)"),
        (", retries=3", "def f(params: P) -> R: ...", "unexpected arguments 'retries'"),
        (", workspace='/'", "def f(params: P) -> R: ...", "must be a WorkspaceSpec"),
        (", strict_params=1", "def f(params: P) -> R: ...", "must be a boolean"),
    ],
)
def test_declaration_that_cannot_work_is_refused_with_its_line(
    tmp_path: Path, more: str, function: str, said: str
) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        _load(tmp_path, _HEAD + _TASK.replace("{more}", more) + function)
    assert said in refused.value.message
    first = _HEAD.count("\n") + 1
    assert refused.value.facts["line"] in {first, first + 1}
    assert refused.value.facts["file"].startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["", "  ", "a/b", "a\\b"])
def test_declaration_with_an_unusable_name_is_refused(tmp_path: Path, name: str) -> None:
    source = _HEAD + f"@task(name={name!r}, owner_email='a@b.c')\ndef f(params: P) -> R: ..."
    with pytest.raises(InvalidDefinition, match="text without slashes"):
        _load(tmp_path, source)


@pytest.mark.parametrize("prefix", ["", "a/../b", "a//b", "./a", "a\\b"])
def test_workspace_with_an_unsafe_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidDefinition, match=r"WorkspaceSpec\.prefix"):
        WorkspaceSpec(prefix=prefix)


@pytest.mark.parametrize("path", ["/abs", "C:/x", "a/../b", "./a", "a\\b", ""])
def test_check_of_a_path_outside_the_workspace_is_refused(path: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        require_file(path)
    assert refused.value.facts["file"] == __file__
    assert require_file(PurePosixPath("a/b")).path == "a/b"


def test_check_with_impossible_counts_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="min_count <= max_count"):
        require_glob("*", min_count=3, max_count=2)


def test_controls_that_conductor_would_refuse_are_refused_here() -> None:
    with pytest.raises(InvalidDefinition, match="one of FIXED"):
        RetryPolicy(logic="SOMETIMES")
    with pytest.raises(InvalidDefinition, match="at most 10"):
        RetryPolicy(count=11)
    with pytest.raises(InvalidDefinition, match="less than the observed p99"):
        _budget(lakefs_merge_timeout_seconds=29)


def test_declaration_by_position_is_in_the_documented_order(tmp_path: Path) -> None:
    body = (
        f"{_HEAD}"
        "@task('a', 'b@c', 'text', WorkspaceSpec('/x'), None, TaskControls(RetryPolicy(1)), True)\n"
        "def f(workspace: Path, params: P) -> R: ...\n"
    )
    task = load_task(parse_target(write_module(tmp_path, body)), tmp_path)
    assert (task.name, task.owner_email, task.description) == ("a", "b@c", "text")
    assert task.workspace == WorkspaceSpec(prefix="/x")
    assert (task.controls.retry.count, task.strict_params, task.strict_input) == (1, True, False)


def test_retry_delay_follows_its_logic() -> None:
    slow = RetryPolicy(logic="EXPONENTIAL_BACKOFF", delay_seconds=2, max_delay_seconds=7)
    assert [slow.delay_before(n) for n in (1, 2, 3)] == [2, 4, 7]
    assert RetryPolicy(logic="LINEAR_BACKOFF", delay_seconds=2).delay_before(3) == 6
    assert RetryPolicy(delay_seconds=2).delay_before(3) == 2


def test_module_with_two_tasks_needs_one_named(tmp_path: Path) -> None:
    two = "".join(
        f"@task(name={name!r}, owner_email='a@b.c')\ndef {name}(params: P) -> R: ...\n"
        for name in ("one", "two")
    )
    name = write_module(tmp_path, _HEAD + two)
    assert [t.name for t in load_tasks(parse_target(name), tmp_path)] == ["one", "two"]
    assert load_task(parse_target(f"{name}:two"), tmp_path).name == "two"
    with pytest.raises(Invalid, match="choose one of"):
        load_task(parse_target(name), tmp_path)
    with pytest.raises(NotFound, match="has no task 'three'"):
        load_task(parse_target(f"{name}:three"), tmp_path)


@pytest.mark.parametrize("target", ["a/b", "a.py:", "", "a:b:", ":x", "a..b"])
def test_target_that_is_no_module_is_refused(target: str) -> None:
    if target == "a:b:":
        assert parse_target(target).task == "b:"
        return
    with pytest.raises(Invalid, match="is not a task module"):
        parse_target(target)


def test_target_that_is_a_file_is_told_the_modules_name() -> None:
    with pytest.raises(Invalid, match=r"dotted name of the module, here songs\.render\."):
        parse_target("./songs/render.py:words")
    with pytest.raises(Invalid, match="dotted name of the module, here render"):
        parse_target("render.py")


def test_module_that_raises_tells_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserCodeFailed) as failed:
        _load(tmp_path, "import json\n\njson.loads('{')\n")
    assert failed.value.facts["reason"].startswith("JSONDecodeError")
    with pytest.raises(NotFound, match="no module"):
        load_tasks(parse_target("no_such_module_here"), tmp_path)


def test_task_module_imports_no_sql_no_spark_and_no_client() -> None:
    heavy = "sqlalchemy", "pyspark", "conductor", "lakefs", "pyiceberg", "starlette", "typer"
    code = f"import sys, headgate.tasks; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "[]"


def _budget(**changed: int) -> PublishBudget:
    fields = {
        "observed_merge_p99_seconds": 20,
        "safety_margin_seconds": 10,
        "lakefs_merge_timeout_seconds": 45,
        "conductor_completion_timeout_seconds": 15,
        "worker_shutdown_grace_seconds": 30,
        "heartbeat_interval_seconds": 10,
    }
    return PublishBudget(**{**fields, **changed})
