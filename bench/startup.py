"""Time to start a command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Bench, Scale, Tell, Timed

# Same entry point as the installed script, independent of its location.
HEADGATE = [
    sys.executable,
    "-c",
    "import sys; from headgate.cli.main import main; sys.exit(main())",
]

_QUERY = "select count(*) as n from g.t"


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The words of `headgate`, and the directory of a small store."""

    headgate: list[str]
    store: Path

    def run(self, *words: str) -> Timed:
        return lambda: run([*self.headgate, *words], self.store)


@contextmanager
def _shells(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Shell]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        shell = Shell(headgate=HEADGATE, store=Path(temporary))
        shell.run("init")()
        (shell.store / "t.csv").write_text("id\n1\n2\n3\n")
        shell.run("load", "-b", "master", "--create", "g.t=t.csv")()
        yield {"": shell}


START: Bench[Shell] = Bench(
    "start of a process", _shells, repetitions=15, quick_repetitions=5, warm_ups=2, floor="python"
)


@START.case("python")
def _python(shell: Shell) -> Timed:
    return lambda: run([sys.executable, "-c", "pass"], shell.store)


@START.case("import sqlalchemy")
def _sqlalchemy(shell: Shell) -> Timed:
    return lambda: run([sys.executable, "-c", "import sqlalchemy"], shell.store)


@START.case("headgate --help", target_ms=300)
def _help(shell: Shell) -> Timed:
    return shell.run("--help")


@START.case("headgate branch list", target_ms=250)
def _branch_list(shell: Shell) -> Timed:
    return shell.run("branch", "list")


@START.case("headgate sql", target_ms=1000)
def _sql(shell: Shell) -> Timed:
    return shell.run("sql", "--engine", "duckdb", _QUERY)


def run(command: list[str], directory: Path) -> None:
    subprocess.run(
        command,
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
