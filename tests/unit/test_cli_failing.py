"""Errors of the command line: families, exit codes, text and JSON output."""

from __future__ import annotations

import json
import logging

import pytest
import typer

from headgate import errors
from headgate.cli.main import (
    EXIT_CODES,
    exit_code,
    is_shown,
    report_defect,
    report_error,
    report_usage_error,
)
from headgate.errors import HeadgateError

FAMILIES = {
    errors.WorkFailed: 1,
    errors.Invalid: 2,
    errors.NotFound: 3,
    errors.Conflict: 4,
    errors.Exists: 4,
    errors.Denied: 5,
    errors.Unavailable: 6,
}


def below(kind: type[HeadgateError]) -> set[type[HeadgateError]]:
    return {kind}.union(*(below(child) for child in kind.__subclasses__()))


@pytest.mark.parametrize(("family", "code"), FAMILIES.items())
def test_exit_code_of_a_family_is_the_documented_one(
    family: type[HeadgateError], code: int
) -> None:
    assert exit_code(family("so it is")) == code


def test_exit_codes_of_every_error_there_is_come_from_exactly_one_family() -> None:
    leaves = below(HeadgateError) - {HeadgateError}
    assert len(leaves) > 40
    for leaf in leaves:
        assert len([family for family in EXIT_CODES if issubclass(leaf, family)]) == 1, leaf


def test_error_codes_of_every_error_there_is_are_distinct() -> None:
    codes = [leaf.__dict__["code"] for leaf in below(HeadgateError) if "code" in leaf.__dict__]
    assert len(codes) == len(set(codes))


def test_report_error_as_json_is_one_document_with_the_facts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = report_error(errors.BranchNotFound(dataset="a.b", branch="x"), as_json=True)
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (code, captured.err) == (3, "")
    assert (document["code"], document["branch"]) == ("branch_not_found", "x")
    assert "headgate branch list a.b" in document["error"]


def test_report_error_as_json_of_what_is_not_unicode_can_still_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_error(errors.Invalid("no", name="\udcff"), as_json=True)
    assert json.loads(capsys.readouterr().out)["code"] == "invalid"


def test_report_error_as_text_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(errors.Denied("not you."), as_json=False) == 5
    assert capsys.readouterr() == ("", "headgate: not you.\n")


def test_report_usage_error_as_json_has_code_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_usage_error(typer.BadParameter("too small"), as_json=True) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "usage"


def test_report_defect_keeps_the_traceback_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_defect(KeyError("x"), as_json=True) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["code"] == "defect"
    assert "KeyError" in captured.err


def test_log_record_of_an_interrupted_or_lost_call_by_py4j_is_not_shown() -> None:
    records = [
        logging.LogRecord("root", logging.ERROR, "x.py", 1, text, None, None)
        for text in (
            "KeyboardInterrupt while sending command.",
            "Exception while sending command.",
            "disk full",
        )
    ]
    assert [is_shown(record) for record in records] == [False, False, True]
