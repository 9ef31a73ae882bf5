"""An endpoint that others serve: a `headgate serve` on this store, by the URL that Spark knows."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlencode

from headgate.catalog.database import Database
from headgate.catalog.tokens import create_token, revoke_token
from headgate.errors import SparkUnavailable
from headgate.model.access import Role

# Longer than any session lasts that nobody closes.
_TOKEN_SECONDS = 24 * 3600
_ANSWER_SECONDS = 10


class ServedEndpoint:
    """Lends sessions a token of the store's own, or the one that was given, and takes it back."""

    def __init__(self, url: str, database: Database, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._database = database
        self._given = token
        self._lent: list[str] = []
        _check_answers(self.url)

    def issue(self, actor: str) -> str:
        """A token for one session, which may do what a session of this process may."""
        if self._given is not None:
            return self._given
        token, record = create_token(
            self._database,
            actor=actor,
            role=Role.WRITER,
            branches=["*"],
            lifetime_seconds=_TOKEN_SECONDS,
            created_by=actor,
        )
        self._lent.append(record.id)
        return token

    def stop(self) -> None:
        """The tokens lent are good for nothing any more."""
        while self._lent:
            revoke_token(self._database, self._lent.pop())


def _check_answers(url: str) -> None:
    """Whoever answers at all is taken for the server; tokens decide the rest."""
    question = f"{url}/v1/config?{urlencode({'warehouse': 'master'})}"
    try:
        with urllib.request.urlopen(question, timeout=_ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError as refused:
        refused.close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            reason=f"nobody answers at {url}, which [spark] endpoint names ({error})",
            remedy="Start `headgate serve` on this store there, or let port 0 stand for a free "
            "one of this machine: this process then listens itself.",
        ) from error
