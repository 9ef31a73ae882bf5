"""Tests that share one server or one JVM run on one worker."""

from __future__ import annotations

import re

import pytest

from tests.support.source import ROOT

_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("{group}")
def test_one(number): pass
"""


def test_tests_of_one_group_run_on_one_worker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Otherwise each process loads every installed plugin, and thereby the product.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        **{f"test_{group}": _TESTS.format(group=group) for group in ("spark", "browser")}
    )
    plugins = ["-p", "xdist", "-p", "tests.support.grouping"]
    words = [*plugins, "-n", "2", "--dist", "loadgroup", "-v"]
    told = pytester.runpytest_subprocess(*words).stdout.str()
    ran = set(re.findall(r"\[(gw\d)\].* PASSED test_(\w+)\.py", told))
    assert len(ran) == 2, told
    assert len({worker for worker, _ in ran}) == 2
