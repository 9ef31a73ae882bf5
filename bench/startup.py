"""Time to start a command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.cases import Bench, Scale, Tell, Timed

# Same entry point as the installed script, independent of its location.
_HEADGATE = "import sys; from headgate.cli.main import main; sys.exit(main())"


@contextmanager
def _nothing(scale: Scale, tell: Tell) -> Iterator[Mapping[str, list[str]]]:
    yield {"": [sys.executable, "-c", _HEADGATE]}


START: Bench[list[str]] = Bench(
    "start of a process", _nothing, repetitions=15, quick_repetitions=5, warm_ups=2, floor="python"
)


@START.case("python")
def _python(_: list[str]) -> Timed:
    return lambda: _run([sys.executable, "-c", ""])


@START.case("headgate --help", target_ms=300)
def _help(headgate: list[str]) -> Timed:
    return lambda: _run([*headgate, "--help"])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
