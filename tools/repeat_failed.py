"""Repeat the failed tests once, and report those that passed then as `FLAKY`.

`python -m tools.repeat_failed RECORD` reads the record of `tests/support/failures.py`. It exits
with 0 only if every failed test passed the second time. It repeats nothing if the session ended
for another reason than failed tests, or with so many failures that the change itself is broken.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

AT_MOST = 10

Repeat = Callable[[str], int]


def main(arguments: list[str]) -> int:
    record = Path(arguments[0])
    if not record.is_file():
        print("repeat: no test session was recorded: the checks before it failed.")
        return 1
    document = json.loads(record.read_text())
    failed: dict[str, str] = document["failed"]
    if document["exit_status"] != pytest.ExitCode.TESTS_FAILED or not failed:
        print(f"repeat: the session ended with status {document['exit_status']}: not repeated.")
        return 1
    if len(failed) > AT_MOST:
        print(f"repeat: {len(failed)} tests failed, more than {AT_MOST}: not repeated.")
        return 1
    return report(failed, _run_alone)


def report(failed: dict[str, str], repeat: Repeat) -> int:
    """Repeat each test and print both outcomes; return 1 if one failed again."""
    outcomes = {test: repeat(test) for test in failed}
    print("\nFLAKY")
    for test, first in failed.items():
        again = "passed" if outcomes[test] == 0 else "FAILED AGAIN"
        print(f"  {test}\n    first:  {first}\n    second: {again}")
    lost = sum(status != 0 for status in outcomes.values())
    print(f"\n{len(failed) - lost} passed, {lost} failed")
    return 1 if lost else 0


def _run_alone(test: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", test]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
