"""An archive of Spark's classes, from which a JVM starts with a third less processor time.

Made once for a Java and an installed Spark (`make test` does it). Java ignores an archive that was
made for other files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from headgate.settings import default_cache
from headgate.spark.java import find_java_home
from headgate.spark.jvm import properties_text, spark_environ, spark_home
from tests.support.spark_servers import launch

# Within the few minutes of a JVM's life the second compiler's work does not pay off: without it,
# the same statements take half the processor time.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark's launcher reads what a JVM prints.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_SECONDS = 600
_LOWER, _UPPER = "java.jsa", "spark.jsa"
# The statements that most tests begin with; classes that they use are archived.
_STATEMENTS = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
for text in (
    "create table c.a.b using iceberg as select id, id % 3 as k from range(10)",
    "insert into c.a.b select id, 1 from range(3)",
    "merge into c.a.b t using (select 1 as id) s on t.id = s.id when matched then update set k = 7",
    "select k, count(*) from c.a.b join c.a.b.snapshots group by k order by k",
):
    spark.sql(text).collect()
spark.createDataFrame([(1, "a")], "n int, s string").selectExpr("sum(n)").collect()
"""


def options_of_jvms() -> str:
    """Return the options of every JVM that the tests start."""
    archive = find_archive()
    return f"{JVM_OPTIONS} {_QUIET} {_using(archive)}" if archive else JVM_OPTIONS


def find_archive() -> Path | None:
    """Return the directory of the archive; None if none was made for this Java and this Spark."""
    place = _place()
    return place if place.is_dir() else None


def make_archive() -> None:
    """Make the archive, and remove those for other files."""
    place = _place()
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    # Java notes the path of the lower archive in the upper one.
    place.mkdir()
    try:
        with TemporaryDirectory() as scratch:
            _make(place, Path(scratch))
    except BaseException:
        shutil.rmtree(place)
        raise


def _make(place: Path, scratch: Path) -> None:
    """Archive Java's own classes, which a runtime in a wheel lacks, and upon them Spark's."""
    lower, upper = place / _LOWER, place / _UPPER
    request = launch(
        scratch,
        {
            "spark.master": "local[2]",
            "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.c.type": "hadoop",
            "spark.sql.catalog.c.warehouse": str(scratch / "warehouse"),
        },
    )
    environ = {**spark_environ(request, spark_home()), "JDK_JAVA_OPTIONS": JVM_OPTIONS}
    java = str(request.java_home / "bin" / "java")
    _run([java, "-Xshare:dump", f"-XX:SharedArchiveFile={lower}"], environ)
    options = request.conf["spark.driver.extraJavaOptions"]
    more = f"-XX:SharedArchiveFile={lower} -XX:ArchiveClassesAtExit={upper}"
    conf = {**request.conf, "spark.driver.extraJavaOptions": f"{options} {more}"}
    properties, statements = scratch / "spark.properties", scratch / "statements.py"
    properties.write_text(properties_text(conf))
    statements.write_text(_STATEMENTS)
    submit = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(properties)]
    _run([*submit, str(statements)], environ)
    if not upper.is_file():
        raise OSError(f"Java wrote no {upper}")


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    subprocess.run(command, env=environ, capture_output=True, check=True, timeout=_SECONDS)


def _using(archive: Path) -> str:
    return f"-XX:SharedArchiveFile={archive / _LOWER}:{archive / _UPPER}"


def _place() -> Path:
    """Return a directory in the environment of this Spark, named by the files Java compares."""
    java = find_java_home(os.environ, default_cache(os.environ)) / "bin" / "java"
    files = [java.resolve(), *sorted((spark_home() / "jars").glob("*.jar"))]
    seen = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    name = hashlib.sha256(repr((JVM_OPTIONS, seen)).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "headgate-tests" / name
