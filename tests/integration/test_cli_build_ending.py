"""`headgate build` in a shell: ended by a signal, or by `headgate builds cancel` from another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.client.http import HttpClient
from tests.support.repositories import Work, new_repository
from tests.support.serving import serving
from tests.support.shell import headgate_json

pytestmark = pytest.mark.timeout(600)

_PIPELINE = """\
import time
from pathlib import Path
from headgate.transforms import Output, transform_df

@transform_df(Output("job.slow"))
def slow(ctx):
    Path("{flag}").touch()
    time.sleep(600)
"""


def _project(root: Path) -> Work:
    work = new_repository(root / "project")
    work.write(pipeline=_PIPELINE.format(flag=root / "started"))
    work.commit()
    headgate_json("init", cwd=work.root)
    headgate_json("jobspecs", "publish", cwd=work.root)
    return work


@contextmanager
def _building(work: Work, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run `headgate build`, and yield once its job runs."""
    started = work.root.parent / "started"
    sources = str(Path(headgate.__path__[0]).parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "build", "job.slow", "--json", *words],
        cwd=work.root,
        env={**os.environ, "PYTHONPATH": sources, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not started.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the job did not begin"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def _ended(process: subprocess.Popen[str]) -> tuple[int, Any]:
    out, err = process.communicate(timeout=120)
    assert out.count("\n") == 1, err
    return process.returncode, json.loads(out)


def _check_nothing_left(work: Work, build: str) -> None:
    [record] = headgate_json("builds", "list", cwd=work.root)
    assert (record["build"], record["state"]) == (build, "canceled")
    assert headgate_json("branch", "list", "job.slow", cwd=work.root) == []
    left = headgate_json("builds", "show", build, cwd=work.root)["jobs"]
    assert [job["state"] for job in left] == ["aborted"]


def test_build_that_another_shell_cancels_ends_as_canceled(tmp_path: Path) -> None:
    work = _project(tmp_path)
    with _building(work) as process:
        [record] = headgate_json("builds", "list", cwd=work.root)
        assert record["state"] == "running"
        canceled = headgate_json("builds", "cancel", record["build"], cwd=work.root)
        assert canceled["state"] == "canceled"
        code, document = _ended(process)
    assert (code, document["state"]) == (1, "canceled")
    assert [job["state"] for job in document["jobs"]] == ["aborted"]
    _check_nothing_left(work, record["build"])


def test_build_that_is_told_to_terminate_aborts_and_says_what_it_did(tmp_path: Path) -> None:
    work = _project(tmp_path)
    with _building(work, "--atomic") as process:
        process.send_signal(signal.SIGTERM)
        code, document = _ended(process)
    assert (code, document["state"]) == (128 + signal.SIGTERM, "canceled")
    _check_nothing_left(work, document["build"])


def test_build_from_afar_that_is_told_to_terminate_is_canceled_at_the_server(
    tmp_path: Path,
) -> None:
    work = _project(tmp_path)
    with serving(work.root) as (url, token, _):
        http = HttpClient(url.removesuffix("/iceberg"), token)
        variables = {"HEADGATE_URL": http.url, "HEADGATE_TOKEN": token}
        with _building(work, **variables) as process:
            [running] = http.pages("/builds")
            assert running["state"] == "running"
            process.send_signal(signal.SIGTERM)
            code, document = _ended(process)
        assert (code, document["state"]) == (128 + signal.SIGTERM, "canceled")
        http.close()
    _check_nothing_left(work, document["build"])
