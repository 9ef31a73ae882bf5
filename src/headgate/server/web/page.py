"""Parts that all pages share: visits, sections, builds, the frame, headers, freshness.

A page is a value, computed from the store; `host` draws it. See ADR 0042.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate import __version__
from headgate.builds.plan import Plan
from headgate.errors import HeadgateError, Invalid, JobSpecNotFound
from headgate.model.access import Grant, Role
from headgate.model.freshness import Decided
from headgate.model.ids import Instant
from headgate.model.names import is_pattern
from headgate.server.web import markup
from headgate.server.web.markup import Child, badge, heading, link, prose, tag
from headgate.store.documents import Json, to_instant

if TYPE_CHECKING:
    from headgate.store.embedded import Store

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request for a page: the visitor's grant, the address and the time."""

    # In the name of the visitor.
    store: Store
    grant: Grant
    query: Mapping[str, str] = field(default_factory=dict)
    # The part of the path that identifies an object: a dataset's name, a build's id.
    subject: str = ""
    path: str = ""
    now: Instant = field(default_factory=lambda: Instant(time.time_ns() // 1_000))

    @property
    def primary(self) -> str:
        """Return the primary branch, the default of pages that show a branch."""
        return self.store.settings.builds.branch

    def shown_branches(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the branch names that the visitor may read."""
        policy = self.store.policy
        return tuple(name for name in names if policy is None or policy.shows_branch(name))

    def param(self, name: str, default: str = "") -> str:
        return self.query.get(name, "").strip() or default

    def int_param(self, name: str) -> int | None:
        text = self.param(name)
        if not text:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise Invalid(f"{name} must be a number, not {text!r}.", given=text)
        return int(text)

    def explain(self, error: HeadgateError) -> str:
        """Return the message of an error; only admins see addresses and paths of the server."""
        return str(error if self.grant.role is Role.ADMIN else error.without_addresses())


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    # Parts by key, in order; each is redrawn only when it has changed.
    sections: Mapping[str, Markup]
    # Path of the navigation entry that the page belongs to.
    place: str
    # Time between refreshes; None for a page that does not refresh.
    refresh_seconds: float | None = None
    status: int = 200


# Pages of a list that an address remembers, to go back; before them comes the first page.
_TRAIL = 20


def split_page(
    visit: Visit,
    path: str,
    found: Sequence[T],
    size: int,
    cursor: Callable[[T], object],
    *,
    name: str = "after",
) -> tuple[Sequence[T], Markup | None]:
    """Return the rows of a page, and links to the pages before and after it.

    A list is read onward only, so that an address carries the cursors of the pages before.

    :param cursor: returns the cursor of the next page from the last row of this one.
    :param name: parameter of the address that has the cursor.
    """
    here, before = visit.param(name), visit.query.get("trail", "").split()
    shown = found[:size]
    following = cursor(shown[-1]) if len(found) > size else None

    def address(to: str | None, trail: Sequence[str]) -> str:
        kept = " ".join(trail[-_TRAIL:])
        return markup.with_query(path, **{**visit.query, name: to, "trail": kept})

    previous = address(before[-1] if before else None, before[:-1]) if here else None
    onward = address(str(following), [*before, *filter(None, [here])]) if following else None
    return shown, markup.steps(("Previous page", previous), ("Next page", onward))


# Computes a page. It only reads, and may block: the host calls it in a thread.
PageMaker = Callable[[Visit], Page]
# Performs the action of a button; returns a message for the visitor, or a path to open.
Act = Callable[[Visit, str, Mapping[str, str]], str]


class DatasetLinks:
    """Links to datasets on branches, drawn only where there is something to open."""

    def __init__(self, visit: Visit, names: Iterable[object]) -> None:
        texts = {str(name) for name in names}
        # The targets of a build may be patterns.
        self._places = visit.store.overview.places(t for t in texts if not is_pattern(t))

    def __call__(self, name: object, branch: str | None, **query: str | None) -> Markup:
        known = self._places.get(str(name), set())
        if known is not None and branch not in known:
            return tag("span", str(name))
        return link(str(name), markup.dataset_at(str(name), branch=branch, **query))


_TARGETS = 3


def build_table(visit: Visit, found: Sequence[Json]) -> Markup:
    """Return a table of builds with links to their pages."""
    links = DatasetLinks(visit, (name for build in found for name in build["targets"][:_TARGETS]))
    rows = [
        (
            markup.link(markup.short(id := build["build"]), markup.build_at(id), title=id),
            markup.badge(build["state"]),
            targets(build, links),
            markup.chip(build["branch"]),
            markup.moment(to_instant(build["started_at"]), visit.now),
            lasted(visit, build),
            build["actor"],
        )
        for build in found
    ]
    headings = ("Build", "State", "Targets", "Branch", "Started", "Took", "By")
    return markup.table(headings, rows, label="Builds")


def lasted(visit: Visit, build: Json) -> str:
    """Return the duration of a build, up to now while it runs."""
    ended = to_instant(build["ended_at"]) if build["ended_at"] else visit.now
    return markup.lasted(to_instant(build["started_at"]), ended)


def targets(build: Json, links: DatasetLinks) -> markup.Child:
    """Return links to the targets of a build, and patterns; of many, only the first few."""
    names, branch = build["targets"], build["branch"]
    shown = [links(name, branch) for name in names[:_TARGETS]]
    rest = len(names) - _TARGETS
    return [markup.separated(shown), f" and {rest} more" if rest > 0 else None]


_PLACES = (
    ("Datasets", markup.DATASETS),
    ("Branches", markup.BRANCHES),
    ("Lineage", markup.LINEAGE),
    ("Builds", markup.BUILDS),
    ("Log", markup.LOG),
    ("Review", markup.REVIEW),
)
# Runs before the first paint, so that the dark theme does not flash white.
_EARLY = (
    "<script>document.documentElement.dataset.theme="
    "localStorage.getItem('headgate-theme')||'auto'</script>"
)
# Two lock gates of a canal, as a data URL, which needs no request.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='7' fill='%230f766e'/%3E"
    "%3Cpath d='M8 7v18M24 7v18M8 16h16' stroke='white' stroke-width='4' "
    "stroke-linecap='round' fill='none'/%3E%3C/svg%3E"
)


def head() -> str:
    """Return the document's head; the version in the URLs makes browsers reload new assets."""
    return (
        f"{_EARLY}"
        f'<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="{_ICON}">'
        f'<link rel="stylesheet" href="{markup.ASSETS}/pages.css?{__version__}">'
        f'<link rel="stylesheet" href="{markup.ASSETS}/parts.css?{__version__}">'
        f'<link rel="stylesheet" href="{markup.ASSETS}/lineage.css?{__version__}">'
        f'<script src="{markup.ASSETS}/pages.js?{__version__}" defer></script>'
        f'<script src="{markup.ASSETS}/lineage.js?{__version__}" defer></script>'
    )


def top(place: str, actor: str, search: str = "") -> Markup:
    """Return the top bar with the navigation; a skip link for keyboard users comes first."""
    skip = tag("a", "Skip to content", href="#content", class_="skip")
    brand = Markup(
        '<a href="{}" class="brand"><span class="gate" aria-hidden="true"></span>Headgate</a>'
    ).format(markup.DATASETS)
    entries = ((text, path, path == place) for text, path in _PLACES)
    places = markup.tabs("Pages", entries, class_="places")
    return tag("header", skip, brand, places, _search(search), _THEME, _who(actor), class_="top")


def _search(text: str) -> Markup:
    return Markup(
        '<form action="{}" method="get" role="search" class="search">'
        '<input type="search" name="q" value="{}" id="search" placeholder="Search   /" '
        'aria-label="Search datasets, branches and builds" autocomplete="off" spellcheck="false">'
        "</form>"
    ).format(markup.DATASETS, text)


_THEME = Markup(
    '<button type="button" class="icon" data-theme-switch title="Light, dark, or as the system" '
    'aria-label="Switch between light, dark and the system&#39;s theme">◐</button>'
)


def _who(actor: str) -> Markup:
    out = tag("button", "Sign out", type="submit", class_="link")
    form = tag("form", out, action=markup.SIGN_OUT, method="post")
    return tag(
        "div", tag("span", actor, class_="actor", title="Your token's actor"), form, class_="who"
    )


def document(title: str, body: Child) -> str:
    """Return a static HTML document, for the sign-in form and for errors outside a page."""
    shown = tag("main", body, class_="plain")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{head()}{tag('title', f'{title} · Headgate')}</head>"
        f"<body>{shown}</body></html>"
    )


def error_body(status: int, message: str, *, again: str | None = None) -> Markup:
    """Return the body of an error page: the message, and links to continue."""
    title = {
        403: "Not allowed",
        404: "Not found",
        409: "It has changed meanwhile",
        503: "Not available now",
    }.get(status, "That did not work")
    links = [link("Start this page over", again, class_="button")] if again else []
    links.append(link("All datasets", markup.DATASETS, class_="button"))
    return tag(
        "div",
        heading(title),
        tag("p", prose(message), role="alert"),
        tag("p", links, class_="buttons"),
        class_="trouble",
    )


# Unsafe-eval and unsafe-inline: Vue compiles templates in the browser, and NiceGUI starts its
# pages with inline scripts.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "object-src 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


class PageHeaders:
    """ASGI middleware that adds the headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded if scope["type"] == "http" else send)


def plan_everything(visit: Visit, branch: str, fallback: Sequence[str]) -> Plan | None:
    """Plan a build of all transforms on the chain; return None if there are none."""
    try:
        return visit.store.decide(
            ["*"], branch=branch, fallback=visit.shown_branches(fallback), create=False
        )
    except JobSpecNotFound:
        return None


def publish_hint() -> Markup:
    """Return the hint for a dataset or a chain without transforms."""
    how = markup.command("headgate jobspecs publish")
    return markup.join(["Publish transforms from their repository:", how])


def freshness_counts(visit: Visit, branch: str) -> Child:
    """Return the numbers of transforms by state on a branch, or why it has none."""
    try:
        plan = plan_everything(visit, branch, visit.store.settings.builds.fallback_of(branch))
    except HeadgateError as error:
        return visit.explain(error)
    if plan is None:
        return tag("span", "no transform is published", class_="faint")
    counts = Counter(decision.state for decision in plan.decisions)
    shown = [badge(f"{counts[s]} {s.value}", _TONES[s]) for s in Decided if counts[s]]
    return markup.chips(shown)


_TONES = {
    Decided.FRESH: "good",
    Decided.HELD: "quiet",
    Decided.ADOPTED: "taken",
    Decided.STALE: "warn",
}
