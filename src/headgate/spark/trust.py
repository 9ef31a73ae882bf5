"""The certificates that a machine trusts, in the form that Java reads.

A Java of the machine knows them; one that comes as a wheel brings its own list, and behind a proxy
that signs with the company's certificate it can fetch nothing.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

# Where systems keep the bundle: Debian and its kin, Red Hat's, SUSE's, macOS and Alpine.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

# A Java keystore: what it begins with, its version, and the kind of entry that is a certificate.
_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
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
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
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
