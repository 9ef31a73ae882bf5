"""From settings to a lakeFS client; its SDK is loaded when it is first asked for something."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.errors import Invalid, MissingExtra, NotFound
from headgate.settings import Settings

if TYPE_CHECKING:
    from headgate.lakefs.client import LakeFS


# What a commit says it was made by: for people, and for recovery after a crash.
MARK = "headgate_execution"


def connect(settings: Settings) -> LakeFS:
    """The configured server, with the credentials of the environment."""
    if settings.lakefs_endpoint is None:
        raise Invalid(
            "no lakeFS is configured: set [lakefs] endpoint in headgate.toml. (A files dataset's "
            "name has a dot: namespace.name.)"
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


class LakeFSOutside:
    """Implements `Outside` for recovery: it looks, and never moves a workspace's branch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _lakefs(self) -> LakeFS:
        return connect(self._settings)

    def find_head(self, target: Mapping[str, str]) -> str | None:
        try:
            return self._lakefs.load_head(target["repository"], target["branch"]).id
        except NotFound:
            return None

    def steps_past(self, target: Mapping[str, str], expected: str) -> int | None:
        head = self._lakefs.load_head(target["repository"], target["branch"])
        if head.id == expected:
            return 0
        return 1 if head.parents and head.parents[0] == expected else None

    def undo(self, target: Mapping[str, str], *, effect: str, back_to: str) -> bool:
        return False

    def find_mark(self, target: Mapping[str, str]) -> str | None:
        try:
            head = self._lakefs.load_head(target["repository"], target["branch"])
        except NotFound:
            return None
        return head.metadata.get(MARK)
