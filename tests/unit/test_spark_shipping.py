"""Transfer of bundles to other machines, and of addresses to job processes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headgate.spark.engines import Address, ConnectAddress, read_address, write_address
from headgate.spark.job import failure_facts
from headgate.spark.job_session import archive_bundle, is_local
from headgate.spark.jvm import GatewayAddress


def bundle_of(root: Path, **files: str) -> Path:
    bundle = root / "0a1b2c"
    for name, text in files.items():
        path = bundle / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bundle


def test_archive_of_a_source_layout_imports_from_its_root(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, src__lib__rules="RATE = 2\n", tools="RATE = 3\n")
    archive = archive_bundle(bundle)
    code = "import lib.rules, tools; print(lib.rules.RATE, tools.RATE)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "2 3", done.stderr


def test_archive_of_a_bundle_is_made_once_and_whole(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, lib__rules="RATE = 2\n")
    first = archive_bundle(bundle)
    written = first.stat().st_mtime_ns
    assert archive_bundle(bundle) == first == tmp_path / "0a1b2c.zip"
    assert first.stat().st_mtime_ns == written
    assert zipfile.ZipFile(first).namelist() == ["lib/", "lib/rules.py"]
    assert {path.name for path in tmp_path.iterdir()} == {"0a1b2c", "0a1b2c.zip"}


@pytest.mark.parametrize(
    "place", ["/executor/work/./0a1b2c", "/server/artifacts/pyfiles/0a1b2c.zip"]
)
def test_failure_in_shipped_code_names_the_line_of_the_bundle(tmp_path: Path, place: str) -> None:
    bundle = bundle_of(tmp_path, src__lib__rules="RATE = 2\n")
    told = f'Traceback:\n  File "{place}/lib/rules.py", line 7, in scaled\nValueError: no'
    facts = failure_facts(RuntimeError(told), bundle)
    assert (facts["file"], facts["line"]) == ("src/lib/rules.py", 7)


@pytest.mark.parametrize(
    "address",
    [GatewayAddress(port=4711, secret="s"), ConnectAddress(url="sc://host:15002/;token=x")],
)
def test_address_told_to_a_job_process_is_the_one_it_reads(address: Address) -> None:
    assert read_address(write_address(address)) == address


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*]", True), ("local", True), ("local-cluster[2,1,512]", False), ("spark://h", False)],
)
def test_workers_of_a_master_are_here_only_in_local_mode(master: str, here: bool) -> None:
    assert is_local(master) is here
