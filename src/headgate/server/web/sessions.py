"""Sessions of the pages: a signed cookie that names a token, and is worth nothing without it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path

COOKIE = "headgate_session"
LIFETIME_SECONDS = 12 * 3600
_KEY_BYTES = 32


class Sessions:
    """Signs and reads session cookies; nothing is kept, so a restart signs nobody out."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, token_id: str, *, now: float | None = None) -> str:
        """A cookie for the holder of a token, good for half a day."""
        until = int((time.time() if now is None else now) + LIFETIME_SECONDS)
        return f"{token_id}.{until}.{self._sign(token_id, until)}"

    def read(self, cookie: str | None, *, now: float | None = None) -> str | None:
        """The token's id, if the cookie is ours and not too old."""
        token_id, _, rest = (cookie or "").partition(".")
        until, _, signature = rest.partition(".")
        if not until.isdecimal() or len(until) > 12 or not signature.isascii():
            return None
        if not hmac.compare_digest(signature, self._sign(token_id, int(until))):
            return None
        return token_id if int(until) > (time.time() if now is None else now) else None

    def _sign(self, token_id: str, until: int) -> str:
        text = f"pages\0{token_id}\0{until}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def load_key(path: Path) -> bytes:
    """The server's signing key, made at its first start and readable for its user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_bytes(_KEY_BYTES)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(made)
    try:
        # A link appears whole or not at all: of two servers that start at once, one key stays.
        os.link(temporary, path)
    except FileExistsError:
        made = path.read_bytes()
    finally:
        temporary.unlink()
    return made
