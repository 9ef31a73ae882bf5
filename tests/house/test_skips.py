"""One skipped test fails a session that forbids skips, unless the test needs lakeFS."""

from __future__ import annotations

import pytest

from tests.support.skips import NO_LAKEFS
from tests.support.source import ROOT

_FORBID = """
    from tests.support.skips import SkipsAreErrors
    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(SkipsAreErrors())
"""

_REFUSED = {
    "test": "import pytest\ndef test_a(): pytest.skip('PostgreSQL: none here')",
    "module": "import pytest\npytest.skip('no Java', allow_module_level=True)",
    "another reason about lakeFS": "import pytest\ndef test_a(): pytest.skip('lakeFS is slow')",
}
_ACCEPTED = {
    "lakefs": f"import pytest\ndef test_a(): pytest.skip({NO_LAKEFS!r})",
    "xfail": "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_a(): assert False",
    "none": "def test_a(): pass",
}


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A separate pytest session in which skips are forbidden."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Otherwise each process loads every installed plugin, and thereby the product.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(_FORBID)
    return pytester


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", _REFUSED)
def test_skip_where_forbidden_fails_and_is_named(
    session: pytest.Pytester, what: str, workers: int
) -> None:
    session.makepyfile(_REFUSED[what])
    result = session.runpytest_subprocess("-p", "xdist", "-n", str(workers))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skipped, which HEADGATE_NO_SKIPS forbids*"])


@pytest.mark.parametrize("what", _ACCEPTED)
def test_skip_for_lakefs_or_none_at_all_passes(session: pytest.Pytester, what: str) -> None:
    session.makepyfile(_ACCEPTED[what])
    result = session.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.OK
