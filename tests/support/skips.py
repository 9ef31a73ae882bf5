"""With `HEADGATE_NO_SKIPS` set, a test that did not run fails the session."""

from __future__ import annotations

import pytest

# Package registries have no lakeFS server: the one part that a machine may lack.
NO_LAKEFS = "lakeFS: no server; HEADGATE_LAKEFS_ENDPOINT names none"


class SkipsAreErrors:
    """Pytest plugin for the process that reports: lists skipped tests, and fails."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is reported as skipped too, but it did run.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._refused:
            terminalreporter.section("skipped, which HEADGATE_NO_SKIPS forbids", red=True)
            for line in self._refused:
                terminalreporter.line(line)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = _reason(report)
        line = f"{report.nodeid}: {reason}"
        # Every xdist worker collects, so a skipped module is reported more than once.
        if reason != NO_LAKEFS and line not in self._refused:
            self._refused.append(line)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
