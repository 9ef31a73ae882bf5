"""The commands in `deploy/` for other machines, executed here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import typer.main

from headgate.cli.serve import serve
from tests.support.serving import wait_until_healthy
from tests.support.spark_servers import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"


def _instruction(name: str) -> list[str]:
    """Return the arguments of the last instruction of this name in the container file."""
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    [found] = [line for line in lines if line.startswith(name)]
    words: list[str] = json.loads(found[found.index("[") :])
    return words


def test_container_starts_with_a_store_of_its_own_and_ends_in_good_order(tmp_path: Path) -> None:
    port = free_port()
    command = [word.replace("0.0.0.0", "127.0.0.1") for word in _instruction("CMD")]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PORT": str(port),
    }
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/readyz")
        healthy = subprocess.run(_instruction("HEALTHCHECK"), env=environ, check=False)
        assert healthy.returncode == 0
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    assert (tmp_path / "headgate.toml").is_file()
    token, printed = (tmp_path / ".headgate" / "admin-token"), (tmp_path / "log").read_text()
    assert str(token) in printed and token.read_text().strip() not in printed


def test_unit_is_read_by_systemd_and_starts_the_server_with_options_that_it_has(
    tmp_path: Path,
) -> None:
    text = (DEPLOY / "headgate.service").read_text()
    [start] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    program, command, *options = shlex.split(start.removeprefix("ExecStart="))
    assert (Path(program).name, command) == ("headgate", "serve")
    typer.main.get_command(serve).make_context("serve", options)
    verifier = shutil.which("systemd-analyze")
    if verifier is not None:
        unit = tmp_path / "headgate.service"
        unit.write_text(text.replace(program, "/bin/true"))
        done = subprocess.run([verifier, "verify", unit], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
