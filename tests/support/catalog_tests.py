"""Iceberg's own tests of catalogs and views, compiled and run against a served store."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.spark.jvm import spark_home
from tests.support.maven import Artifact, cached, ensure, fetch_files, java, must

VERSION = "1.11.0"
NOT_FETCHED = "no catalog tests of Iceberg: they could not be fetched (make test-engines says why)"
# The compiler is a jar too: the Java runtime that tests use has none.
_COMPILER = Artifact(organisation="org.eclipse.jdt", name="ecj", version="3.40.0")
_ARTIFACTS = (
    *(
        Artifact(
            organisation="org.apache.iceberg",
            name=name,
            version=VERSION,
            classifiers=("", "tests"),
            transitive=True,
        )
        for name in ("iceberg-core", "iceberg-api")
    ),
    Artifact(
        organisation="org.junit.platform",
        name="junit-platform-console-standalone",
        version="1.14.4",
    ),
    Artifact(organisation="org.assertj", name="assertj-core", version="3.27.7", transitive=True),
    _COMPILER,
)
_SOURCES = Path(__file__).parents[1] / "engines" / "java"
_CASES_SECONDS = 400.0


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Cases by outcome; a failed one with the message of its failure."""

    passed: frozenset[str]
    failed: Mapping[str, str]
    # Of abilities that no catalog must have, with the reason.
    skipped: Mapping[str, str]


def find() -> Path | None:
    """Return the directory of the jars; None if they were never fetched."""
    place = cached(f"iceberg-tests-{VERSION}")
    return place if place.is_dir() else None


def ensure_fetched() -> Path:
    """Return the directory of the jars, and fetch them if necessary."""
    return ensure(cached(f"iceberg-tests-{VERSION}"), _fetch)


def _fetch(scratch: Path) -> Path:
    directory = scratch / "jars"
    directory.mkdir()
    return fetch_files(directory, _ARTIFACTS)


def run_catalog_tests(
    suite: str, scratch: Path, jars: Path, *, uri: str, token: str, branch: str
) -> Outcomes:
    """Run every case of a class of `tests/engines/java` on a branch of a served store."""
    # Iceberg's own jars do not include Hadoop's client, by which it opens local files.
    hadoop = sorted((spark_home() / "jars").glob("hadoop-client-*.jar"))
    classes, reports = scratch / "classes", scratch / "reports"
    path = ":".join(map(str, [classes, *sorted(jars.glob("*.jar")), *hadoop]))
    compiler = jars / f"{_COMPILER.name}-{_COMPILER.version}.jar"
    options = ["-17", "-proc:none", "-nowarn", "-cp", path, "-d", str(classes)]
    must([str(java()), "-jar", str(compiler), *options, str(_SOURCES)], scratch)
    given = {"uri": uri, "token": token, "branch": branch}
    command = [
        *(str(java()), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *(f"-Dheadgate.{name}={value}" for name, value in given.items()),
        *("-cp", path, "org.junit.platform.console.ConsoleLauncher", "execute"),
        *("--select-class", suite, "--reports-dir", str(reports)),
        *("--details", "none", "--disable-banner"),
    ]
    done = subprocess.run(
        command, cwd=scratch, capture_output=True, text=True, timeout=_CASES_SECONDS
    )
    # With 1 it says that cases failed.
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return _read(reports)


def _read(reports: Path) -> Outcomes:
    cases = [
        case for file in reports.glob("*.xml") for case in ElementTree.parse(file).iter("testcase")
    ]
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for case in cases:
        name = case.attrib["name"].replace("()", "")
        for kind, found in (("failure", failed), ("error", failed), ("skipped", skipped)):
            if (said := case.find(kind)) is not None:
                found[name] = said.get("message") or (said.text or "").strip().partition("\n")[0]
    names = {case.attrib["name"].replace("()", "") for case in cases}
    return Outcomes(
        passed=frozenset(names - failed.keys() - skipped.keys()), failed=failed, skipped=skipped
    )
