"""A failed test is recorded, repeated once, and reported with both outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tools import repeat_failed

_RECORD = """
    import os
    from pathlib import Path
    from tests.support.failures import FailureRecord
    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(FailureRecord(Path("failures.json").absolute()))
"""
_TESTS = """
    import pytest

    def test_good(): pass

    @pytest.mark.xdist_group("spark")
    def test_bad(): assert 1 == 2

    @pytest.fixture
    def broken(): raise RuntimeError("no server")

    def test_without_its_fixture(broken): pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_session_with_failures_records_them_by_id(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Otherwise each process loads every installed plugin, and thereby the product.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(_RECORD)
    pytester.makepyfile(test_it=_TESTS)
    pytester.runpytest_subprocess("-p", "xdist", "-n", str(workers), "--dist", "loadgroup")
    record = json.loads((pytester.path / "failures.json").read_text())
    assert record["exit_status"] == pytest.ExitCode.TESTS_FAILED
    assert set(record["failed"]) == {"test_it.py::test_bad", "test_it.py::test_without_its_fixture"}
    assert record["failed"]["test_it.py::test_bad"].startswith("call: assert 1 == 2")
    assert "no server" in record["failed"]["test_it.py::test_without_its_fixture"]


@pytest.mark.parametrize(("second", "status"), [(0, 0), (1, 1)])
def test_repeat_of_a_failed_test_decides_and_both_outcomes_are_printed(
    capsys: pytest.CaptureFixture[str], second: int, status: int
) -> None:
    assert repeat_failed.report({"a.py::test_b": "call: boom"}, lambda test: second) == status
    printed = capsys.readouterr().out
    assert "FLAKY" in printed
    assert "call: boom" in printed
    assert ("FAILED AGAIN" in printed) is bool(second)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"exit_status": 2, "failed": {"a": "interrupted"}},
        {"exit_status": 1, "failed": {}},
        {"exit_status": 1, "failed": {str(n): "x" for n in range(repeat_failed.AT_MOST + 1)}},
    ],
    ids=["checks failed", "interrupted", "skips only", "too many"],
)
def test_repeat_of_a_session_that_broke_otherwise_fails(
    tmp_path: Path, document: dict[str, object] | None
) -> None:
    record = tmp_path / "failures.json"
    if document is not None:
        record.write_text(json.dumps(document))
    assert repeat_failed.main([str(record)]) == 1
