"""Check the model of the door with Alloy, and print the result of every check.

`python -m tools.check_model` reads `model/*.als`. A check of the sound design must find no
counterexample; the check of a broken twin must find one, and so must the run that shows that the
model is not empty. The exit status is 1 if a result differs from the `expect` of its command.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.maven import cached, ensure, fetch_jar, java

VERSION = "6.2.0"
MODELS = Path(__file__).parent.parent / "model"
# The files have scopes for CI. A further step of a trace takes about twice the time.
MORE_STEPS = 1
# Models that are checked at once; Alloy uses one core for each.
PROCESSES = 2
# `6..6 steps` are traces of six steps alone: since every step may change nothing, shorter ones are
# among them.
_STEPS = re.compile(r"(?:(\d+)\.\.)?(\d+) steps")
_COMMAND = re.compile(r"^(?:check|run) (\w+) \{[^}]*\} for .* expect ([01])$", re.MULTILINE)
_RESULT = re.compile(r"^\d+\. (?:check|run) +(\w+) .*?\b(SAT|UNSAT)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Result:
    model: str
    command: str
    # A counterexample of a check, or an instance of a run.
    is_found: bool
    is_expected: bool

    def __str__(self) -> str:
        found = "found" if self.is_found else "none"
        verdict = "" if self.is_expected else "  UNEXPECTED"
        return f"  {self.model:<15} {self.command:<32} {found}{verdict}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make model", description="Check the model of the door.")
    parser.add_argument("models", nargs="*", help="names of models, such as door; all by default")
    parser.add_argument("--small", action="store_true", help="the scope of CI")
    given = parser.parse_args(arguments)
    files = [path for path in sorted(MODELS.glob("*.als")) if path.stem in given.models]
    if unknown := set(given.models) - {path.stem for path in files}:
        known = ", ".join(path.stem for path in sorted(MODELS.glob("*.als")))
        parser.error(f"there is no model {sorted(unknown)[0]!r}; the models are {known}.")
    ensure_alloy()
    results: list[Result] = []
    began = time.monotonic()

    def check_timed(path: Path) -> tuple[list[Result], float]:
        began = time.monotonic()
        return check(path, more_steps=0 if given.small else MORE_STEPS), time.monotonic() - began

    with ThreadPoolExecutor(PROCESSES) as pool:
        chosen = files or sorted(MODELS.glob("*.als"))
        for path, (found, seconds) in zip(chosen, pool.map(check_timed, chosen), strict=True):
            print(*found, sep="\n")
            print(f"  {path.stem}: {seconds:.0f} s", flush=True)
            results += found
    wrong = sum(not result.is_expected for result in results)
    total = time.monotonic() - began
    print(f"{len(results) - wrong} passed, {wrong} failed, {total:.0f} s")
    return 1 if wrong else 0


def check(path: Path, *, more_steps: int) -> list[Result]:
    """Execute all commands of a model."""
    with tempfile.TemporaryDirectory(prefix="headgate-model-") as scratch:
        model = Path(scratch) / path.name
        text = path.read_text()
        model.write_text(with_more_steps(text, more_steps))
        # Glucose comes in the jar, for the usual platforms; the default solver, in Java, takes ten
        # times as long.
        words = ["exec", "-f", "-s", "glucose", "-t", "none", "-c", "*"]
        words += ["-o", str(Path(scratch) / "output")]
        command = [str(java()), "-Xmx2g", "-jar", str(ensure_alloy()), *words, str(model)]
        done = subprocess.run(command, capture_output=True, text=True)
    found = dict(_RESULT.findall(done.stdout + done.stderr))
    expected = dict(_COMMAND.findall(text))
    if found.keys() != expected.keys():
        raise RuntimeError(f"Alloy failed on {path}:\n{done.stdout}{done.stderr}"[:3000])
    return [
        Result(
            model=path.stem,
            command=name,
            is_found=result == "SAT",
            is_expected=(result == "SAT") == (expected[name] == "1"),
        )
        for name, result in found.items()
    ]


def with_more_steps(text: str, more: int) -> str:
    """Return a model whose commands examine longer traces."""

    def longer(match: re.Match[str]) -> str:
        least = f"{int(match[1]) + more}.." if match[1] else ""
        return f"{least}{int(match[2]) + more} steps"

    return _STEPS.sub(longer, text)


def ensure_alloy() -> Path:
    """Return Alloy's jar, and fetch it if necessary."""
    artifact = ("org.alloytools", "org.alloytools.alloy.dist", VERSION)
    return ensure(
        cached("alloy") / f"alloy-{VERSION}.jar", lambda scratch: fetch_jar(scratch, *artifact)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
