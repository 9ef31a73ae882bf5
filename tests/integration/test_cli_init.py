"""`headgate init`: files that it creates, and files that it leaves alone."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from headgate.cli.init import settings_text
from tests.support.cli import Cli, new_cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_cli(tmp_path, monkeypatch, capsys)


def git(directory: Path, *words: str) -> None:
    identity = ("-c", "user.name=ana", "-c", "user.email=ana@example.org")
    subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True)


def settings(directory: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads((directory / "headgate.toml").read_text())


def test_init_outside_git_makes_an_embedded_store(cli: Cli) -> None:
    said = cli.ok("init")
    assert settings(cli.directory) == {
        "store": {"catalog": ".headgate/catalog.db", "warehouse": ".headgate/warehouse"},
        "builds": {"branch": "master"},
    }
    assert "Next: headgate dataset create" in said.err and said.out == ""
    assert not (cli.directory / ".gitignore").exists()
    assert cli.json("dataset", "list") == []


def test_init_json_says_what_was_made(cli: Cli) -> None:
    made = cli.json("init", "shop")
    assert made == {
        "settings": str(cli.directory / "shop" / "headgate.toml"),
        "catalog": f"sqlite:///{cli.directory}/shop/.headgate/catalog.db",
        "warehouse": f"{cli.directory}/shop/.headgate/warehouse",
        "branch": "master",
        "ignored": False,
    }


def test_init_twice_is_refused_and_changes_nothing(cli: Cli) -> None:
    cli.ok("init")
    (cli.directory / "headgate.toml").write_text("# mine\n")
    assert cli.error("init", code=4) == "exists"
    assert (cli.directory / "headgate.toml").read_text() == "# mine\n"


@pytest.mark.parametrize("branch", ["main", "master"])
def test_init_in_a_repository_takes_its_branch_and_hides_the_data(cli: Cli, branch: str) -> None:
    git(cli.directory, "init", "--initial-branch", branch)
    (cli.directory / ".gitignore").write_text("*.pyc")
    said = cli.ok("init")
    assert settings(cli.directory)["builds"]["branch"] == branch
    assert (cli.directory / ".gitignore").read_text() == "*.pyc\n.headgate/\n"
    assert ".gitignore" in said.err
    git(cli.directory, "add", ".")
    git(cli.directory, "commit", "-m", "store")


def test_init_in_a_clone_takes_the_branch_of_origin(cli: Cli) -> None:
    git(cli.directory, "init", "--initial-branch", "trunk", "there")
    git(cli.directory / "there", "commit", "--allow-empty", "-m", "first")
    git(cli.directory, "clone", "there", "here")
    assert cli.json("init", "here")["branch"] == "trunk"


def test_init_below_a_repository_where_it_is_ignored_already_adds_nothing(cli: Cli) -> None:
    git(cli.directory, "init", "--initial-branch", "main")
    (cli.directory / ".gitignore").write_text("/.headgate/\n")
    assert cli.json("init")["ignored"] is False
    assert (cli.directory / ".gitignore").read_text() == "/.headgate/\n"
    assert cli.json("init", "deep/er")["ignored"] is True


def test_init_inside_another_store_makes_its_own(cli: Cli) -> None:
    cli.ok("init")
    cli.ok("init", "inner")
    assert (cli.directory / "inner" / ".headgate" / "catalog.db").is_file()


def test_init_with_places_of_its_own_writes_and_uses_them(cli: Cli) -> None:
    cli.ok("init", "--catalog", "db/c [1].db", "--warehouse", 'wh "x"')
    assert settings(cli.directory)["store"] == {"catalog": "db/c [1].db", "warehouse": 'wh "x"'}
    cli.ok("dataset", "create", "raw.scans", "--kind", "files")
    local = str(cli.file("a.txt"))
    cli.ok("files", "put", "raw.scans", "-b", "master", local)
    assert (cli.directory / "db" / "c [1].db").is_file()
    assert (cli.directory / 'wh "x"' / "objects").is_dir()


def test_init_on_postgres_joins_a_store_that_is_there(cli: Cli, postgres_url: str) -> None:
    url = postgres_url.replace("+psycopg", "")
    cli.ok("init", "one", "--catalog", url)
    cli.ok("init", "two", "--catalog", url)
    assert settings(cli.directory / "two")["store"]["catalog"] == url


def test_init_with_a_password_in_the_url_is_refused(cli: Cli) -> None:
    secret = "hunter2"
    said = cli("init", "--catalog", f"postgresql://ana:{secret}@127.0.0.1:1/x")
    assert said.code == 2 and "PGPASSWORD" in said.err
    assert secret not in said.err and not (cli.directory / "headgate.toml").exists()


def test_init_that_fails_leaves_no_directory_and_takes_none_away(cli: Cli) -> None:
    (cli.directory / "mine").mkdir()
    for directory in ("new", "mine"):
        cli.error("init", directory, "--catalog", "postgresql://ana@127.0.0.1:1/x", code=6)
    assert [path.name for path in cli.directory.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--catalog", "mysql://x/y"], 2),
        (["--catalog", "postgresql://ana@127.0.0.1:1/x"], 6),
        (["--warehouse", "ftp://x/y"], 2),
        (["file/store"], 6),
        (["file"], 6),
        (["n" * 10_000], 6),
    ],
)
def test_init_that_cannot_be_leaves_no_settings(cli: Cli, words: list[str], code: int) -> None:
    cli.file("file")
    assert cli("init", *words).code == code
    assert [path.name for path in cli.directory.glob("**/*headgate.toml*")] == []


@pytest.mark.parametrize("text", ['a"b', "a\\b", "ü", "a\x7fb", "a\nb", "🙂"])
def test_settings_text_of_any_path_reads_back(text: str) -> None:
    written = tomllib.loads(settings_text(catalog=text, warehouse=text, branch="main"))
    assert written["store"] == {"catalog": text, "warehouse": text}


def test_init_with_a_warehouse_that_cannot_be_written_fails_and_leaves_no_store(cli: Cli) -> None:
    Path("place").write_text("a file, not a directory")
    words = ("init", "new", "--warehouse", str(Path("place").absolute()))
    told = cli.json(*words, code=6)
    assert "cannot be used" in told["error"] and "--warehouse" in told["error"]
    assert not Path("new").exists()


def test_init_leaves_nothing_of_its_probe(cli: Cli) -> None:
    cli.ok("init", "new")
    warehouse = Path("new/.headgate/warehouse")
    assert not [f for f in warehouse.rglob("*") if f.is_file() and "probe" in str(f)]
