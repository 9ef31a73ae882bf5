"""Without PySpark everything else works, and the error of Spark names the missing extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.errors import MissingExtra, SparkUnavailable
from headgate.spark.engines import SharedJvm, connect_remote
from headgate.spark.jvm import Launch
from headgate.spark.session import start


def test_spark_without_pyspark_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    request = Launch(java_home=tmp_path, conf={}, environ={}, log_path=tmp_path / "log")
    for begin in (start, SharedJvm.start):
        with pytest.raises(MissingExtra, match=r"headgate\[spark\]"):
            begin(request)


def test_connect_remote_without_its_client_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SparkUnavailable, match=r"headgate\[connect\]"):
        connect_remote("sc://localhost", {})


def test_jvm_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho no memory today >&2\nexit 1\n")
    binary.chmod(0o755)
    request = Launch(
        java_home=tmp_path, conf={}, environ={"PATH": "/bin:/usr/bin"}, log_path=tmp_path / "log"
    )
    with pytest.raises(SparkUnavailable, match=r"(?s)JVM did not start.*no memory today"):
        SharedJvm.start(request)
