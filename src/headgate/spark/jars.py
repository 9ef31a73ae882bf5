"""The Iceberg jars that Spark needs: fetched once, then taken from a cache without a network."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.errors import SparkUnavailable
from headgate.spark.gateway import Launch, log_tail, properties_text, spark_environ, submit_command
from headgate.spark.library import spark_home

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# Iceberg's own S3 client; as large as it is, only for a warehouse that is there.
ICEBERG_S3 = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"

_RESOLVE_SECONDS = 900


def coordinates_for(warehouse: str) -> tuple[str, ...]:
    """Which jars a warehouse needs."""
    return (ICEBERG, ICEBERG_S3) if warehouse.startswith(("s3:", "s3a:")) else (ICEBERG,)


def ensure(
    cache_dir: Path,
    *,
    java_home: Path,
    environ: Mapping[str, str],
    coordinates: Sequence[str] = (ICEBERG,),
) -> list[Path]:
    """The jars of these coordinates as whole local files; only what is not cached is fetched."""
    root = cache_dir / "jars"
    return [
        jar
        for coordinate in coordinates
        for jar in _ensure_one(root, coordinate, java_home=java_home, environ=environ)
    ]


def find_cached(cache_dir: Path, coordinate: str) -> list[Path]:
    """The cached jars of a coordinate, none where it was never fetched."""
    return _jars_in(_place(cache_dir / "jars", coordinate))


def _ensure_one(
    root: Path, coordinate: str, *, java_home: Path, environ: Mapping[str, str]
) -> list[Path]:
    place = _place(root, coordinate)
    if jars := _jars_in(place):
        return jars
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / ".lock"):
        if not _jars_in(place):
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as scratch:
                _fetch(Path(scratch), coordinate, java_home=java_home, environ=environ)
                # A directory appears with all its jars or not at all.
                (Path(scratch) / "ivy" / "jars").rename(place)
    return _jars_in(place)


def _fetch(scratch: Path, coordinate: str, *, java_home: Path, environ: Mapping[str, str]) -> None:
    """Spark's own resolver does the work, so the machine's mirror settings for Spark hold."""
    home = spark_home()
    log_path = scratch / "log"
    request = Launch(
        java_home=java_home,
        conf={
            "spark.master": "local",
            "spark.jars.packages": coordinate,
            "spark.jars.ivy": str(scratch / "ivy"),
        },
        environ=environ,
        log_path=log_path,
    )
    properties = scratch / "spark.properties"
    properties.write_text(properties_text(request.conf), encoding="utf-8")
    with log_path.open("wb") as log:
        # A gateway without a stdin ends as soon as it is up: resolving is all that happens.
        code = subprocess.run(
            submit_command(home, properties),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **spark_environ(request, home),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "gateway"),
            },
            timeout=_RESOLVE_SECONDS,
            check=False,
        ).returncode
    fetched = _jars_in(scratch / "ivy" / "jars")
    if code != 0 or not fetched:
        raise SparkUnavailable(
            reason=f"{coordinate} could not be fetched",
            remedy="It is needed once; then it is kept. A mirror is named by "
            "DEFAULT_ARTIFACT_REPOSITORY, or by spark.jars.ivySettings in Spark's defaults. "
            f"What the resolver said:\n{log_tail(log_path)}",
        )
    for jar in fetched:
        _flush(jar)


def _place(root: Path, coordinate: str) -> Path:
    return root / coordinate.replace(":", "_")


def _jars_in(place: Path) -> list[Path]:
    return sorted(place.glob("*.jar"))


def _flush(path: Path) -> None:
    """On disk before its name is: a power cut must not leave an empty file under a good name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
