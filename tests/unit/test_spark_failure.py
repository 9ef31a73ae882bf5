"""Where a failure of user code happened, as its author sees it."""

from __future__ import annotations

import runpy
from pathlib import Path

from headgate.spark.failure import describe


def failing(bundle: Path, text: str) -> BaseException:
    bundle.mkdir(exist_ok=True)
    (bundle / "pipeline.py").write_text(text)
    try:
        runpy.run_path(str(bundle / "pipeline.py"))
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def test_describe_of_an_error_in_the_bundle_names_its_innermost_line(tmp_path: Path) -> None:
    error = failing(tmp_path / "b", "def f():\n    raise ValueError('no')\nf()\n")
    facts = describe(error, tmp_path / "b")
    assert (facts["file"], facts["line"], facts["message"]) == ("pipeline.py", 2, "no")
    assert "ValueError: no" in facts["traceback"]


def test_describe_of_a_syntax_error_names_the_line_that_does_not_parse(tmp_path: Path) -> None:
    facts = describe(failing(tmp_path / "b", "x = 1\nx = = 2\n"), tmp_path / "b")
    assert (facts["file"], facts["line"]) == ("pipeline.py", 2)


def test_describe_of_a_workers_trace_prefers_the_line_in_the_worker(tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    told = f'File \\"{bundle}/lib/rules.py\\", line 7, in scaled'
    facts = describe(failing(bundle, f'raise RuntimeError("{told}")\n'), bundle)
    assert (facts["file"], facts["line"]) == ("lib/rules.py", 7)


def test_describe_of_an_error_outside_the_bundle_names_no_line(tmp_path: Path) -> None:
    facts = describe(failing(tmp_path / "b", "int('x')\n"), tmp_path / "elsewhere")
    assert (facts["file"], facts["line"]) == (None, None)


def test_describe_of_a_java_error_leaves_javas_stack_to_the_traceback(tmp_path: Path) -> None:
    facts = describe(RuntimeError("calling o1.\n: Forbidden: no\n\tat a.B(C.java:1)"), tmp_path)
    assert facts["message"] == "calling o1.\n: Forbidden: no"
    assert "C.java:1" in facts["traceback"]
