"""Jars are resolved once by Spark, then cached; a repository on disk serves as mirror."""

from __future__ import annotations

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.errors import SparkUnavailable
from headgate.spark.java import ensure_jars, find_cached_jars, find_java_home

_TINY = "org.example:tiny:1.0"
_POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
    "<artifactId>tiny</artifactId><version>1.0</version></project>"
)


@pytest.fixture
def java_home(tmp_path: Path) -> Path:
    return find_java_home(os.environ, tmp_path / "java")


def mirror(root: Path) -> dict[str, str]:
    """A Maven repository with one jar, and the variable that configures it as mirror."""
    place = root / "org/example/tiny/1.0"
    place.mkdir(parents=True)
    (place / "tiny-1.0.pom").write_text(_POM)
    with zipfile.ZipFile(place / "tiny-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return {**os.environ, "DEFAULT_ARTIFACT_REPOSITORY": root.as_uri()}


def test_two_callers_at_once_get_the_same_whole_jar_from_the_mirror(
    tmp_path: Path, java_home: Path
) -> None:
    environ, cache = mirror(tmp_path / "mirror"), tmp_path / "cache"

    def fetch(_: int) -> list[Path]:
        return ensure_jars(cache, java_home=java_home, environ=environ, coordinates=[_TINY])

    with ThreadPoolExecutor(2) as callers:
        first, second = callers.map(fetch, range(2))
    assert first == second == find_cached_jars(cache, _TINY)
    assert zipfile.ZipFile(first[0]).testzip() is None
    assert [path.name for path in (cache / "jars").iterdir() if "fetching" in path.name] == []


def test_cached_jar_needs_neither_java_nor_mirror(tmp_path: Path) -> None:
    place = tmp_path / "jars" / _TINY.replace(":", "_")
    place.mkdir(parents=True)
    (place / "tiny.jar").touch()
    jars = ensure_jars(tmp_path, java_home=Path("/nowhere"), environ={}, coordinates=[_TINY])
    assert jars == [place / "tiny.jar"]


def test_unknown_jar_fails_with_the_resolvers_words_and_leaves_nothing(
    tmp_path: Path, java_home: Path
) -> None:
    environ, cache = mirror(tmp_path / "mirror"), tmp_path / "cache"
    gone = tmp_path / "mirror/org/example/tiny/1.0/tiny-1.0.jar"
    gone.unlink()
    with pytest.raises(SparkUnavailable, match=r"org\.example:tiny:1\.0 could not be fetched"):
        ensure_jars(cache, java_home=java_home, environ=environ, coordinates=[_TINY])
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]
