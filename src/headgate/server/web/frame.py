"""What is around every page: the head of the document, navigation, search, who you are."""

from __future__ import annotations

from headgate.server.web import addresses
from headgate.server.web.markup import Child, Markup, tag
from headgate.server.web.pieces import heading, link, prose

_PLACES = (
    ("Datasets", addresses.DATASETS),
    ("Branches", addresses.BRANCHES),
    ("Lineage", addresses.LINEAGE),
    ("Builds", addresses.BUILDS),
    ("Log", addresses.LOG),
    ("Review", addresses.REVIEW),
)
# Before anything is drawn, so that a dark room is never lit up for a moment.
_EARLY = (
    "<script>document.documentElement.dataset.theme="
    "localStorage.getItem('headgate-theme')||'auto'</script>"
)
# Two lock gates of a canal, as a picture that needs no request.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='7' fill='%230f766e'/%3E"
    "%3Cpath d='M8 7v18M24 7v18M8 16h16' stroke='white' stroke-width='4' "
    "stroke-linecap='round' fill='none'/%3E%3C/svg%3E"
)


def head(version: str) -> str:
    """What goes into the document's head; the version makes a new release's assets new."""
    return (
        f"{_EARLY}"
        f'<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="{_ICON}">'
        f'<link rel="stylesheet" href="{addresses.ASSETS}/pages.css?{version}">'
        f'<link rel="stylesheet" href="{addresses.ASSETS}/parts.css?{version}">'
        f'<link rel="stylesheet" href="{addresses.ASSETS}/lineage.css?{version}">'
        f'<script src="{addresses.ASSETS}/pages.js?{version}" defer></script>'
        f'<script src="{addresses.ASSETS}/lineage.js?{version}" defer></script>'
    )


def top(place: str, actor: str, search: str = "") -> Markup:
    """The bar with the navigation; a skip link comes first for those who use the keyboard."""
    skip = tag("a", "Skip to content", href="#content", class_="skip")
    brand = tag(
        "a",
        tag("span", class_="gate", aria_hidden="true"),
        "Headgate",
        href=addresses.DATASETS,
        class_="brand",
    )
    places = tag(
        "nav",
        [_entry(text, path, place) for text, path in _PLACES],
        aria_label="Pages",
        class_="places",
    )
    return tag("header", skip, brand, places, _search(search), _theme(), _who(actor), class_="top")


def _entry(text: str, path: str, place: str) -> Markup:
    return link(text, path, **({"aria_current": "page"} if path == place else {}))


def _search(text: str) -> Markup:
    box = tag(
        "input",
        type="search",
        name="q",
        value=text,
        id="search",
        aria_label="Search datasets",
        placeholder="Search datasets   /",
        autocomplete="off",
        spellcheck="false",
    )
    return tag("form", box, action=addresses.DATASETS, method="get", role="search", class_="search")


def _theme() -> Markup:
    return tag(
        "button",
        "◐",
        type="button",
        class_="icon",
        data_theme_switch=True,
        aria_label="Switch between light, dark and the system's theme",
        title="Light, dark, or as the system",
    )


def _who(actor: str) -> Markup:
    out = tag("button", "Sign out", type="submit", class_="link")
    form = tag("form", out, action=addresses.SIGN_OUT, method="post")
    return tag(
        "div", tag("span", actor, class_="actor", title="Your token's actor"), form, class_="who"
    )


def document(title: str, body: Child, version: str) -> str:
    """A whole page without anything live: signing in, and errors before that."""
    shown = tag("main", body, class_="plain")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{head(version)}{tag('title', f'{title} · Headgate')}</head>"
        f"<body>{shown}</body></html>"
    )


def trouble(status: int, message: str, *, again: str | None = None) -> Markup:
    """An error as a page: what happened, and where to go from here."""
    said = {
        403: "Not allowed",
        404: "Not found",
        409: "It has changed meanwhile",
        503: "Not available now",
    }.get(status, "That did not work")
    ways = [link("Start this page over", again, class_="button")] if again else []
    ways.append(link("All datasets", addresses.DATASETS, class_="button"))
    return tag(
        "div",
        heading(said),
        tag("p", prose(message), role="alert"),
        tag("p", ways, class_="buttons"),
        class_="trouble",
    )
