"""Choice of Java: 17 or 21 only, the caller's first, otherwise the wheel's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headgate.errors import SparkUnavailable
from headgate.spark import java
from headgate.spark.java import find_java_home, wrap_wheel


def make_java(home: Path, major: int) -> Path:
    """Write a `java` that prints this version, and otherwise its arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        '#!/bin/sh\nif [ "$1" = -XshowSettings:properties ]; then\n'
        f'  echo "    java.home = {home}" >&2\n'
        f'  echo "    java.specification.version = {major}" >&2\n'
        'else\n  printf "%s\\n" "$@"\nfi\n'
    )
    binary.chmod(0o755)
    return home


def test_find_java_home_of_a_supported_java_home_takes_it(tmp_path: Path) -> None:
    mine, other = make_java(tmp_path / "mine", 21), make_java(tmp_path / "other", 17)
    environ = {"JAVA_HOME": str(mine), "PATH": str(other / "bin")}
    assert find_java_home(environ, tmp_path, places=()) == mine


def test_find_java_home_where_java_25_is_first_passes_over_it(tmp_path: Path) -> None:
    new = make_java(tmp_path / "jvm" / "a-25", 25)
    old = make_java(tmp_path / "jvm" / "b-17", 17)
    environ = {"JAVA_HOME": str(new), "PATH": str(new / "bin")}
    assert find_java_home(environ, tmp_path, places=[f"{tmp_path}/jvm/*"]) == old


def test_find_java_home_where_only_java_25_is_wraps_the_wheel(tmp_path: Path) -> None:
    new = make_java(tmp_path / "new", 25)
    home = find_java_home({"JAVA_HOME": str(new)}, tmp_path / "cache", places=())
    assert home.is_relative_to(tmp_path / "cache")


def test_find_java_home_without_any_says_what_there_is_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "wheel_home", lambda *_: None)
    new = make_java(tmp_path / "new", 25)
    with pytest.raises(SparkUnavailable, match=r"Java 25 in .*JAVA_HOME.*headgate\[spark\]"):
        find_java_home({"JAVA_HOME": str(new)}, tmp_path, places=())


def test_wrapped_java_drops_the_missing_module_and_keeps_the_rest(tmp_path: Path) -> None:
    home = wrap_wheel(make_java(tmp_path / "a b'c", 21), tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D a=$b *", ""]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "-Xmx1g\n-D a=$b *\n\n"


def test_wrapped_java_trusts_what_it_is_given_and_can_be_told_otherwise(tmp_path: Path) -> None:
    home = wrap_wheel(
        make_java(tmp_path / "wheel", 21), tmp_path / "cache", trust=tmp_path / "my certs.jks"
    )
    said = subprocess.run(
        [home / "bin" / "java", "-Djavax.net.ssl.trustStore=mine"],
        capture_output=True,
        text=True,
        check=True,
    )
    # If a property is set twice, Java uses the later value.
    assert said.stdout.splitlines() == [
        f"-Djavax.net.ssl.trustStore={tmp_path / 'my certs.jks'}",
        "-Djavax.net.ssl.trustStore=mine",
    ]
