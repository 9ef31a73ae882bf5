"""`headgate demo` executes what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.shell import run_headgate

pytestmark = pytest.mark.timeout(900)


def test_demo_plays_the_worked_example_to_its_end(tmp_path: Path) -> None:
    done = run_headgate("demo", "--keep", str(tmp_path / "kept"), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    states = {
        step: [job["state"] for job in facts[step]["jobs"]]
        for step in ("master", "feature", "promoted")
    }
    assert states == {
        "master": ["succeeded"] * 3,
        "feature": ["skipped", "succeeded", "succeeded"],
        "promoted": ["skipped", "adopted", "adopted"],
    }
    assert facts["difference"]["counts"]["changed"] == 3
    assert (facts["isolated"], facts["zombie_refused"]) == (True, True)
    assert sum(job["spark_jobs"] for job in facts["promoted"]["jobs"]) == 0
    for told in ("headgate diff", "north", "no feature", "0 Spark jobs", "rejected"):
        assert told in done.stderr
    assert (tmp_path / "kept" / "headgate.toml").is_file()
