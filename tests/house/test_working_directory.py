"""A test that leaves a file in the working directory fails; tests of other workers do not."""

from __future__ import annotations

import pytest

from tests.support.source import ROOT

_PLUGIN = ("-p", "no:cacheprovider", "-p", "tests.support.working_directory")
_TESTS = """
    import subprocess
    import time
    from pathlib import Path
    import pytest

    BARRIER = Path({meet!r})

    def meet(name):
        (BARRIER / name).touch()
        while len(list(BARRIER.iterdir())) < 2:
            time.sleep(0.01)

    @pytest.mark.xdist_group("one")
    def test_leaves_a_directory():
        assert Path("here.txt").read_text() == "here"
        meet("one")
        subprocess.run(["mkdir", "left"], check=True)

    @pytest.mark.xdist_group("two")
    def test_leaves_nothing():
        meet("two")
        time.sleep(1)
"""


def test_file_left_in_the_working_directory_fails_only_the_test_that_left_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    meet = pytester.mkdir("meet")
    pytester.path.joinpath("here.txt").write_text("here")
    pytester.makepyfile(_TESTS.replace("{meet!r}", repr(str(meet))))
    done = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", *_PLUGIN)
    # The test itself passes, and its teardown fails.
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*test_leaves_a_directory*", "the test left */left"])
    assert not pytester.path.joinpath("left").exists()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_ignored_directory_is_not_collected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("wanted", "ignored"):
        pytester.mkdir(name).joinpath(f"test_{name}.py").write_text("def test_one(): pass")
    done = pytester.runpytest_subprocess("-n", workers, "--ignore", "ignored", *_PLUGIN)
    done.assert_outcomes(passed=1)
