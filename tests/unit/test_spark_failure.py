"""Location of a failure in user code, as its author sees it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from headgate.errors import ChecksFailed, UserCodeFailed
from headgate.spark.job import failure_facts


def failing(bundle: Path, text: str) -> BaseException:
    bundle.mkdir(exist_ok=True)
    (bundle / "pipeline.py").write_text(text)
    try:
        runpy.run_path(str(bundle / "pipeline.py"))
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def test_failure_facts_of_an_error_in_the_bundle_names_its_innermost_line(tmp_path: Path) -> None:
    error = failing(tmp_path / "b", "def f():\n    raise ValueError('no')\nf()\n")
    facts = failure_facts(error, tmp_path / "b")
    assert (facts["file"], facts["line"], facts["message"]) == ("pipeline.py", 2, "ValueError: no")
    assert "ValueError: no" in facts["traceback"]


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        ("{}['amount']", "KeyError", "KeyError: 'amount'"),
        ("(_ for _ in ()).throw(AssertionError)", "AssertionError", "AssertionError"),
    ],
)
def test_failure_facts_keep_the_class_of_the_users_exception(
    tmp_path: Path, raised: str, kind: str, message: str
) -> None:
    facts = failure_facts(failing(tmp_path / "b", f"{raised}\n"), tmp_path / "b")
    assert (facts["error"], facts["message"]) == (kind, message)


def test_failure_facts_of_a_workers_trace_have_the_class_raised_in_the_worker(
    tmp_path: Path,
) -> None:
    trace = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nlib.NoRate: 'EUR'\n"
    )
    facts = failure_facts(RuntimeError(trace), tmp_path)
    assert (facts["error"], facts["message"]) == ("NoRate", "NoRate: 'EUR'")


def test_failure_facts_of_a_syntax_error_names_the_line_that_does_not_parse(tmp_path: Path) -> None:
    facts = failure_facts(failing(tmp_path / "b", "x = 1\nx = = 2\n"), tmp_path / "b")
    assert (facts["file"], facts["line"]) == ("pipeline.py", 2)


def test_failure_facts_of_a_workers_trace_prefers_the_line_in_the_worker(tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    told = f'File \\"{bundle}/lib/rules.py\\", line 7, in scaled'
    facts = failure_facts(failing(bundle, f'raise RuntimeError("{told}")\n'), bundle)
    assert (facts["file"], facts["line"]) == ("lib/rules.py", 7)


def test_failure_facts_of_a_full_disk_say_what_to_do(tmp_path: Path) -> None:
    told = "Job aborted.\\n\\tat org.x\\nCaused by: java.io.IOException: No space left on device"
    facts = failure_facts(
        failing(tmp_path / "b", f'raise RuntimeError("{told}")\n'), tmp_path / "b"
    )
    assert "is full" in facts["message"] and "Free some space" in facts["message"]
    assert (facts["file"], facts["line"]) == ("pipeline.py", 1)


def test_failure_facts_of_an_error_outside_the_bundle_names_no_line(tmp_path: Path) -> None:
    facts = failure_facts(failing(tmp_path / "b", "int('x')\n"), tmp_path / "elsewhere")
    assert (facts["file"], facts["line"]) == (None, None)


def test_failure_facts_of_a_java_error_leaves_javas_stack_to_the_traceback(tmp_path: Path) -> None:
    text = "An error occurred while calling o1.x.\n: java.Oops: no\n\tat a.B(C.java:1)"
    facts = failure_facts(RuntimeError(text), tmp_path)
    assert facts["message"] == "java.Oops: no"
    assert "C.java:1" in facts["traceback"]


def test_failure_facts_of_failed_checks_names_the_line_that_declares_the_first(
    tmp_path: Path,
) -> None:
    failed = [("s.out", "ids", "1 row")]
    place = str(tmp_path / "lib" / "checks.py")
    facts = failure_facts(ChecksFailed(before=False, failed=failed, file=place, line=7), tmp_path)
    assert (facts["file"], facts["line"]) == ("lib/checks.py", 7)


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("SdkClientException: Unable to load credentials from any of the providers", "Set AWS_ACC"),
        ("SdkClientException: Unable to load region from any of the providers in", "AWS_REGION"),
        ("S3Exception: Denied (Service: S3, Status Code: 403, Request ID: 1)", r"Denied \(Serv"),
    ],
)
def test_failure_facts_of_trouble_with_s3_says_what_a_client_must_have(
    tmp_path: Path, cause: str, told: str
) -> None:
    text = (
        f"Failed to close current writer\n\tat a.B(C.java:1)\nCaused by: software.{cause}\n\tat d"
    )
    facts = failure_facts(RuntimeError(text), tmp_path)
    assert re.search(told, facts["message"]) and "writer" not in facts["message"]
    assert "C.java:1" in facts["traceback"]


def test_failure_facts_of_what_user_code_returned_names_the_transform(tmp_path: Path) -> None:
    error = UserCodeFailed(
        doing="pipeline.f", file=f"{tmp_path}/pipeline.py", line=3, reason="", traceback=""
    )
    error.__cause__ = TypeError("f returned list")
    facts = failure_facts(error, tmp_path)
    assert (facts["file"], facts["line"]) == ("pipeline.py", 3)
    assert (facts["error"], facts["message"]) == ("TypeError", "TypeError: f returned list")


def test_failure_facts_of_what_the_catalog_refused_leaves_out_who_passed_it_on(
    tmp_path: Path,
) -> None:
    refused = "org.apache.iceberg.exceptions.ForbiddenException: Forbidden: job 1 may not."
    facts = failure_facts(
        RuntimeError(f"An error occurred while calling o1.sql.\n: {refused}"), tmp_path
    )
    assert facts["message"] == "job 1 may not."
