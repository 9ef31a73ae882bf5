"""Files of a store are for their owner alone, unless its directory is shared with its group."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.files.private_copy import ContentCache
from headgate.rows.evaluator_pool import EvaluatorPool
from headgate.settings import ServerSettings, load_settings
from headgate.store.embedded import Store
from headgate.tasks.attempt_directory import AttemptLog, attempt_directory
from tests.support.cli import Cli, new_store_cli, put
from tests.support.rows import GRAPH, insert_people


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A user who takes no care: files are open to all by default."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    (tmp_path / "store").mkdir(mode=0o755)
    return new_store_cli(tmp_path / "store", monkeypatch, capsys)


def _modes(directory: Path) -> dict[str, int]:
    """Modes of all files and directories that Headgate itself writes."""
    return {
        str(path): stat.S_IMODE(path.lstat().st_mode)
        for path in (directory, *directory.rglob("*"))
        # Data files and manifests are written by the libraries of Iceberg.
        if path.suffix not in {".parquet", ".avro"}
    }


def _wrong(directory: Path, *, file: int, folder: int) -> dict[str, str]:
    return {
        path: oct(mode)
        for path, mode in _modes(directory).items()
        if mode & 0o777 != (folder if Path(path).is_dir() else file)
    }


def test_store_is_closed_to_all_other_users_whatever_the_umask(cli: Cli, tmp_path: Path) -> None:
    put(cli, "first")
    (tmp_path / "schema.toml").write_text(GRAPH)
    cli.ok("schema", "apply", str(tmp_path / "schema.toml"), "-b", "master")
    with Store(load_settings(cli.directory)) as store:
        store.mutate("master", insert_people("a", "b"))
        own = cli.directory / ".headgate"
        # The catalog is open, with its log and its shared memory.
        assert {"catalog.db", "catalog.db-wal", "catalog.db-shm"} <= {p.name for p in own.iterdir()}
        assert own.stat().st_mode & 0o077 == 0
        beside = {p for p in own.rglob("*") if "tables" not in p.parts}
        assert {str(p) for p in beside} & set(_wrong(own, file=0o600, folder=0o700)) == set()
        [metadata, *_] = own.rglob("*.metadata.json")
        assert metadata.stat().st_mode & 0o077 == 0
    assert cli.json("doctor")["ok"]


def test_catalog_in_a_directory_of_others_is_closed_itself(tmp_path: Path, cli: Cli) -> None:
    place = tmp_path / "another"
    cli.ok("init", str(place), "--catalog", str(tmp_path / "shared.db"))
    assert (tmp_path / "shared.db").stat().st_mode & 0o777 == 0o600


def test_store_in_a_directory_that_hands_its_group_on_is_shared_with_the_group(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.umask(0o022)
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o2770)
    monkeypatch.chdir(team)
    cli.ok("init")
    cli.ok("dataset", "create", "raw.scans", "--kind", "files")
    put(cli, "first")
    assert _wrong(team / ".headgate", file=0o660, folder=0o770) == {}
    assert all(p.stat().st_mode & stat.S_ISGID for p in team.rglob("*") if p.is_dir())
    assert cli.json("doctor")["ok"]


def test_store_of_an_earlier_release_is_reported_with_the_command_that_mends_it(cli: Cli) -> None:
    put(cli, "first")
    own = cli.directory / ".headgate"
    for path in (own, *own.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    report = cli.json("doctor", code=1)
    [check] = [check for check in report["checks"] if not check["ok"]]
    [finding] = check["findings"]
    assert (check["check"], finding["where"]) == ("access", str(own))
    mend = finding["remedy"].split("`")[1]
    assert mend.startswith("chmod -R go-rwx")
    subprocess.run(shlex.split(mend), check=True)
    assert cli.json("doctor")["ok"]
    assert _wrong(own, file=0o600, folder=0o700) == {}


def test_directories_of_tasks_and_caches_are_closed(cli: Cli) -> None:
    root = cli.directory / "elsewhere" / "tasks"
    AttemptLog(root / "logs" / "a.jsonl", {}).write("begun")
    with attempt_directory(root, "one", {}) as workspace:
        places = [root.parent, root, root / "logs", root / "attempts", workspace.parent]
        assert [oct(p.stat().st_mode & 0o777) for p in places] == ["0o700"] * len(places)
    cache = cli.directory / "cache"
    _, kept = ContentCache(cache / "contents").add_unhashed(iter((b"x",)))
    assert cache.stat().st_mode & 0o077 == 0 and kept.exists()


def test_directory_of_evaluators_is_closed(tmp_path: Path) -> None:
    pool = EvaluatorPool(ServerSettings(), tmp_path / "store" / "work", os.environ)
    try:
        pool.start()
        assert (tmp_path / "store/work/evaluators.log").exists()
        assert _wrong(tmp_path / "store", file=0o600, folder=0o700) == {}
    finally:
        pool.close()
