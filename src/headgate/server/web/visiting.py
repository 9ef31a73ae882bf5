"""A visit to a page, and what a page is: computed from the store, drawn by whoever hosts it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.errors import Invalid, RoleDenied
from headgate.model.access import Grant, Right, require
from headgate.model.ids import Instant
from headgate.server.web.markup import Markup
from headgate.store import Store


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Who looks, at what, and when."""

    store: Store
    grant: Grant
    query: Mapping[str, str] = field(default_factory=dict)
    # The part of the address that says which thing: a dataset's name, a build's id.
    subject: str = ""
    path: str = ""
    now: Instant = field(default_factory=lambda: Instant(time.time_ns() // 1_000))

    @property
    def primary(self) -> str:
        """The branch that people mean when they name none."""
        return self.store.settings.builds.branch

    def asked(self, name: str, default: str = "") -> str:
        return self.query.get(name, "").strip() or default

    def asked_number(self, name: str) -> int | None:
        text = self.asked(name)
        if not text:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise Invalid(f"{name} must be a number, not {text!r}.", given=text)
        return int(text)

    def may_write(self, branch: str) -> bool:
        """Whether to offer what changes a branch; whoever acts is checked again."""
        try:
            require(self.grant, Right.WRITE, written=[branch])
        except RoleDenied:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page that is drawn again only when it has changed."""

    key: str
    body: Markup


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    sections: tuple[Section, ...]
    # Which entry of the navigation it belongs to.
    place: str
    # How soon to look again; None where nothing is going on.
    refresh_seconds: float | None = None
    status: int = 200


# Reads only, and may block: it is called in a thread.
PageMaker = Callable[[Visit], Page]
# What a button does; the text is told to whoever pressed it.
Act = Callable[[Visit, str, Mapping[str, str]], str]
