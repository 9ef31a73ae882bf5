"""`headgate.open()`: a store on this machine, or one that a server offers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.errors import Invalid
from headgate.settings import Settings, load_settings, with_actor, with_server
from headgate.store.embedded import Store


def open(
    where: str | Path | None = None,
    *,
    token: str | None = None,
    actor: str | None = None,
    environ: Mapping[str, str] | None = None,
    recover_first: bool = True,
) -> Store:
    """Opens the store of the nearest `headgate.toml`, the one at a path, or a server's.

    Without `where`, HEADGATE_URL and HEADGATE_TOKEN say which server, if any.
    """
    text = str(where) if where is not None else None
    if text is not None and text.startswith(("http://", "https://")):
        settings = load_settings(None, environ, server_url=text)
        return _remote(with_server(settings, url=text, token=token))
    if token is not None:
        raise Invalid("a token goes with the URL of a server; this is a local store.")
    settings = load_settings(Path(text) if text is not None else None, environ)
    if text is None and settings.server_url:
        # Falling back to a local store would write where nobody meant to.
        return _remote(settings)
    return Store(with_actor(settings, actor), recover_first=recover_first)


def _remote(settings: Settings) -> Store:
    from headgate.client.store import RemoteStore  # noqa: PLC0415  (slow, and seldom needed)

    return RemoteStore(settings)
