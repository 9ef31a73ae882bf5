"""A progress bar appears only on a terminal, for long operations."""

from __future__ import annotations

import pytest

from headgate.cli.output import copy_progress

MUCH = 1024**3


def test_copying_where_nobody_watches_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with copy_progress("put", files=1000, total_bytes=MUCH) as report:
        assert report is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("files", "size"), [(1000, 5), (1, MUCH)])
def test_copying_much_on_a_terminal_shows_how_far_it_is(
    files: int, size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with copy_progress("put", files=files, total_bytes=size) as report:
        assert report is not None
        report(1, size // 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"put 1/{files} files" in captured.err


def test_copying_little_on_a_terminal_shows_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with copy_progress("get", files=3, total_bytes=1000) as report:
        assert report is None
    assert capsys.readouterr().err == ""
