"""Connections to the configured lakeFS server.

The SDK is slow to import and optional, so it is imported at the first connection.
"""

from __future__ import annotations

import importlib.util
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.errors import Invalid, MissingExtra, NotFound
from headgate.model.recovery import WorkspaceHead
from headgate.settings import Settings

if TYPE_CHECKING:
    from headgate.lakefs.client import LakeFS


def connect(settings: Settings) -> LakeFS:
    """Connect to the configured server with the credentials in the environment."""
    if settings.lakefs_endpoint is None:
        raise Invalid(
            "no lakeFS is configured: set [lakefs] endpoint in headgate.toml. (The name of a files "
            "dataset has a dot: namespace.name.)"
        )
    key = settings.environ.get("HEADGATE_LAKEFS_ACCESS_KEY_ID")
    secret = settings.environ.get("HEADGATE_LAKEFS_SECRET_ACCESS_KEY")
    if not key or not secret:
        raise Invalid(
            "lakeFS needs HEADGATE_LAKEFS_ACCESS_KEY_ID and HEADGATE_LAKEFS_SECRET_ACCESS_KEY in "
            "the environment."
        )
    if importlib.util.find_spec("lakefs") is None:
        raise MissingExtra(feature="a workspace in lakeFS", extra="lakefs")
    from headgate.lakefs.client import LakeFS  # noqa: PLC0415  (optional and slow: its SDK)

    return LakeFS(settings.lakefs_endpoint, access_key_id=key, secret_access_key=secret)


class HeadReader:
    """Reader of the heads of lakeFS branches for recovery; connects at the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, repository: str, branch: str) -> WorkspaceHead | None:
        """Return the head of a branch; None if the branch or its repository is gone."""
        try:
            return self._lakefs.load_head(repository, branch).as_head()
        except NotFound:
            return None

    @cached_property
    def _lakefs(self) -> LakeFS:
        return connect(self._settings)
