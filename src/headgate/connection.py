"""`headgate.open()`: open an embedded store, or a store on a server."""

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
    cold: bool = False,
) -> Store:
    """Open the store of the nearest `headgate.toml`, of a path, or of a server URL.

    Without `where`, HEADGATE_URL and HEADGATE_TOKEN select a server if they are set.

    :param cold: start a Spark of this process's own, also if `headgate spark up` keeps one warm.
    """
    text = str(where) if where is not None else None
    if text is not None and text.startswith(("http://", "https://")):
        settings = load_settings(None, environ, server_url=text)
        return _remote(with_server(settings, url=text, token=token), cold=cold)
    if token is not None:
        raise Invalid(
            "token was given without a server URL: a local store has no tokens. Leave it out."
        )
    settings = load_settings(Path(text) if text is not None else None, environ)
    if text is None and settings.server_url:
        # A fallback to a local store would write to the wrong place.
        return _remote(settings, cold=cold)
    return Store(with_actor(settings, actor), recover_first=recover_first, cold=cold)


def _remote(settings: Settings, *, cold: bool) -> Store:
    from headgate.client.store import RemoteStore  # noqa: PLC0415  (slow, and seldom needed)

    return RemoteStore(settings, cold=cold)
