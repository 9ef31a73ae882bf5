"""Record of the failed tests, so that CI can run them once more.

With `HEADGATE_FAILURES` set to a path, the reporting process writes a JSON document there: the
session's exit status, and for each failed test the last line of its error.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

_XDIST_GROUP = re.compile(r"@[a-z_]+$")


class FailureRecord:
    """Pytest plugin for the process that reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # xdist appends the name of the group to the test's id.
            test = _XDIST_GROUP.sub("", report.nodeid)
            self._failed.setdefault(test, f"{report.when}: {_last_line(report)}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        record = {"exit_status": int(session.exitstatus), "failed": self._failed}
        self._path.write_text(json.dumps(record, indent=2))


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if crash is not None and lines else (lines or ["no message"])[-1]
