"""Operation of a real server: metrics, an access log, a clean shutdown."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.chromium import opened_window
from tests.support.pages import sign_in
from tests.support.shell import headgate_json, run_headgate
from tests.support.site import serving

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    headgate_json("init", cwd=tmp_path)
    yield tmp_path


def test_serve_metrics_and_log_tell_an_operator_what_is_going_on(root: Path) -> None:
    with serving(root) as (url, token, process):
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/metrics", timeout=60).status_code == 401
        headgate_json("dataset", "create", "raw.scans", "--kind", "files", cwd=root)
        config = f"{url}/iceberg/v1/config"
        prefix = httpx.get(config, params={"warehouse": "master"}, headers=bearer, timeout=60)
        spaces = f"{url}/iceberg/v1/{prefix.json()['overrides']['prefix']}/namespaces"
        assert httpx.get(spaces, headers=bearer, timeout=60).status_code == 200
        answer = httpx.get(f"{url}/api/v1/datasets?search={token}", headers=bearer, timeout=60)
        text = httpx.get(f"{url}/metrics", headers=bearer, timeout=60).text
        part = {"actor": "bo", "role": "reader", "datasets": ["gold.*"]}
        made = httpx.post(f"{url}/api/v1/tokens", json=part, headers=bearer, timeout=60).json()
        limited = {"authorization": f"Bearer {made['token']}"}
        refused = httpx.get(f"{url}/metrics", headers=limited, timeout=60)
        # They count what its patterns hide.
        assert (refused.status_code, refused.json()["code"]) == (403, "role_denied")
    assert process.returncode == 0
    assert "headgate_publications_total 1.0" in text
    assert 'headgate_refusals_total{route="/metrics",status="401"} 1.0' in text
    assert 'headgate_request_seconds_count{method="GET",route="/api/v1/datasets"' in text
    log = (root / "serve.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    [asked] = [line for line in lines if line.get("path") == "/api/v1/datasets"]
    assert (asked["status"], asked["request"]) == (
        answer.status_code,
        answer.headers["x-request-id"],
    )
    assert token is not None and token not in log
    actors = {line["actor"] for line in lines if line.get("route") == "/iceberg"}
    assert actors == {asked["actor"]} and None not in actors


def test_serve_on_a_port_in_use_says_so_and_makes_no_token(root: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = run_headgate("serve", "--port", str(port), cwd=root)
    assert done.returncode != 0
    assert f"port {port} is already in use" in done.stderr and "web pages" not in done.stderr
    assert not (tmp_path / ".headgate" / "admin-token").exists()
    assert headgate_json("token", "list", cwd=root) == []


def test_serve_told_to_stop_ends_in_good_order_though_pages_are_open(
    root: Path, chromium: Browser
) -> None:
    with serving(root) as (url, token, process), opened_window(chromium, url) as window:
        assert token is not None
        sign_in(window, token)
        window.go("/builds")
        window.page.wait_for_timeout(500)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert "Traceback" not in (root / "serve.log").read_text()
