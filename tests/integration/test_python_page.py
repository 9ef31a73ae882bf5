"""The page on Python is correct: its code is executed, in order, as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from headgate.cli.init import make_store
from headgate.settings import FILE_NAME
from tests.support.source import ROOT

_PEOPLE = """
[dataset."hr.person"]
columns = {id = "long", name = "string"}
key = ["id"]
"""


def test_page_on_python_followed_to_the_letter_works(tmp_path: Path) -> None:
    make_store(tmp_path / FILE_NAME, catalog="c.db", warehouse="w", branch="master")
    (tmp_path / "scan.txt").write_text("one")
    (tmp_path / "people.toml").write_text(_PEOPLE)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not_found" in done.stdout
