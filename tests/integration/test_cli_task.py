"""`headgate task` as a user types it, without Conductor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli, put
from tests.support.shell import run_headgate
from tests.support.source import ROOT
from tests.support.task_modules import FAMILIAR, write_module


def test_task_check_tells_what_is_declared(cli: Cli) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    [told] = cli.json("task", "check", module)
    assert (told["task"], told["workspace"], told["retries"]) == ("render_words", "/render/in", 2)
    assert "render_words" in cli.ok("task", "check", module).out


def test_task_extract_writes_one_definition_and_nothing_else(cli: Cli) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    assert cli.ok("task", "extract", module, "-o", "made/def.json").out == "made/def.json\n"
    made = json.loads((cli.directory / "made" / "def.json").read_text())
    assert (made["name"], made["responseTimeoutSeconds"]) == ("render_words", 300)
    assert cli.error("task", "extract", module, "-o", "def.yaml", code=2) == "invalid"
    for nowhere in ("n" * 1_000 + ".json", "made/def.json/below.json"):
        words = ("task", "extract", module, "-o", nowhere)
        assert cli.error(*words, code=6) == "storage_unavailable"


def test_task_of_a_module_that_cannot_be_used_is_refused_by_kind(cli: Cli) -> None:
    assert cli.error("task", "check", "no_such_module", code=3) == "not_found"
    assert cli.error("task", "check", "songs/render.py", code=2) == "invalid"
    broken = write_module(cli.directory, "raise ValueError('odd')\n")
    assert cli.error("task", "check", broken, code=1) == "user_code"
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    assert cli.error("task", "register", module, code=2) == "invalid"
    assert cli.error("task", "run", module, "--input", "none.json", code=3) == "not_found"


def test_familiar_module_runs_with_only_its_import_changed(cli: Cli) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    put(cli, "render/in/song.txt")
    given = put(cli, "render/in/stems/a.txt")
    workspace = {"repository": "raw.scans", "branch": "master", "refType": "commit", "ref": given}
    data = {"workspace": workspace, "params": {"word": "la", "times": 2}}
    (cli.directory / "input.json").write_text(json.dumps(data))
    done = cli.json("task", "run", module, "--input", "input.json")
    assert (done["status"], done["attempts"]) == ("COMPLETED", 1)
    assert done["output"]["result"] == {"row_count": 2, "status": "DONE"}
    assert done["output"]["workspace"]["refType"] == "commit"
    listed = cli.json("files", "ls", "raw.scans", "-b", "master")
    assert "render/in/out/1.txt" in [file["path"] for file in listed]
    metrics = [line for line in Path(done["log"]).read_text().splitlines() if "app." in line]
    assert len(metrics) == 2


@pytest.mark.parametrize(
    ("word", "retries", "status"),
    [("stop", "1", "FAILED_WITH_TERMINAL_ERROR"), ("later", "0", "FAILED")],
)
def test_task_run_that_fails_exits_1_and_is_not_tried_again_in_vain(
    cli: Cli, word: str, retries: str, status: str
) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    put(cli, "render/in/song.txt")
    given = put(cli, "render/in/stems/a.txt")
    workspace = {"repository": "raw.scans", "branch": "master", "ref_type": "commit", "ref": given}
    data = {"workspace": workspace, "params": {"word": word}}
    (cli.directory / "input.json").write_text(json.dumps(data))
    done = cli.json("task", "run", module, "--input", "input.json", "--retries", retries, code=1)
    assert (done["status"], done["attempts"], done["output"]) == (status, 1, None)
    assert done["reason"] and Path(done["log"]).exists()


def test_task_start_without_a_server_exits_with_the_code_of_its_error(cli: Cli) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    words = [sys.executable, "-m", "headgate", "task", "start", module, "--json"]
    done = subprocess.run(words, cwd=cli.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "failed"
    assert json.loads(done.stdout)["code"] == "invalid"


def _headgate_without_conductor(
    cli: Cli, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `headgate task …`, also the processes that it starts, without `conductor` installed."""
    blocked = cli.directory / "blocked"
    package = blocked / "conductor"
    package.mkdir(parents=True, exist_ok=True)
    raised = "raise ModuleNotFoundError(\"No module named 'conductor'\", name='conductor')\n"
    (package / "__init__.py").write_text(raised)
    path = os.pathsep.join([str(blocked), str(ROOT / "src")])
    return run_headgate("task", *words, "--json", cwd=cli.directory, PYTHONPATH=path, **variables)


def test_task_run_without_the_extra_conductor_completes(cli: Cli) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    put(cli, "render/in/song.txt")
    given = put(cli, "render/in/stems/a.txt")
    workspace = {"repository": "raw.scans", "branch": "master", "ref_type": "commit", "ref": given}
    data = {"workspace": workspace, "params": {"word": "la"}}
    (cli.directory / "input.json").write_text(json.dumps(data))
    done = _headgate_without_conductor(cli, "run", module, "--input", "input.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "COMPLETED"


@pytest.mark.parametrize("command", ["register", "start"])
def test_task_command_of_conductor_without_its_extra_names_the_extra(
    cli: Cli, command: str
) -> None:
    module = write_module(cli.directory, FAMILIAR, package="headgate.tasks")
    url = "http://127.0.0.1:9"
    done = _headgate_without_conductor(cli, command, module, HEADGATE_CONDUCTOR_URL=url)
    error = json.loads(done.stdout)
    assert (done.returncode, error["code"]) == (6, "missing_extra"), done.stderr
    assert "pip install 'headgate[conductor]'" in error["error"]
