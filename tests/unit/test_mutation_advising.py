"""Advice on the engine: from two GiB on."""

from __future__ import annotations

from pathlib import Path

from headgate.rows.engine import ARROW_BYTES, advice_on_load, advice_on_optimize
from headgate.rows.load import advice_for


def test_advice_on_load_is_given_from_two_gibibytes_on() -> None:
    assert advice_on_load(ARROW_BYTES - 1) is None
    said = advice_on_load(3 * ARROW_BYTES)
    assert said is not None and said.startswith("6.0 GiB") and "--engine spark" in said


def test_advice_on_optimize_names_the_table_and_what_it_holds() -> None:
    assert advice_on_optimize("graph.person", ARROW_BYTES - 1) is None
    said = advice_on_optimize("graph.person", ARROW_BYTES)
    assert said is not None and said.startswith("graph.person holds 2.0 GiB")
    assert "--engine spark" in said


def test_advice_on_load_counts_the_files_of_directories(tmp_path: Path) -> None:
    for name in ("all/1.csv", "all/deep/2.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as hole:
            # A sparse file takes no space on the disk.
            hole.truncate(ARROW_BYTES // 2)
    assert advice_for([tmp_path / "all"]) is not None
    assert advice_for([tmp_path / "all/1.csv", b"id\n1\n", tmp_path / "nowhere"]) is None
