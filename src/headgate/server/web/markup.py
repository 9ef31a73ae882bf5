"""HTML for the pages: elements whose text and attributes are escaped, and the parts pages share.

Text is safe only as `Markup`. Everything else is escaped where it enters an element.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from headgate.model.ids import Instant, instant_text
from headgate.model.names import DatasetName

_VOID = {"br", "hr", "img", "input", "link", "meta"}


Child: TypeAlias = "Markup | str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element; `class_` is `class`, `aria_label` is `aria-label`, None is left out."""
    opening = f"<{name}{''.join(_attribute(key, attributes[key]) for key in attributes)}>"
    if name in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return children one after the other; everything but `Markup` is escaped."""
    if children is None:
        return Markup()
    if isinstance(children, str | int):
        return escape(children)
    return Markup().join(map(join, children))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    # As plain text, since `Markup` may have quotes that are safe only outside a tag.
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


DATASETS = "/"
BRANCHES = "/branches"
LINEAGE = "/lineage"
BUILDS = "/builds"
LOG = "/log"
REVIEW = "/review"
SIGN_IN = "/login"
SIGN_OUT = "/logout"
ASSETS = "/assets"


def with_query(path: str, /, **query: str | int | None) -> str:
    """Return a path with the parameters that have a value."""
    given = {key.rstrip("_"): value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def dataset_at(name: DatasetName | str, /, **query: str | int | None) -> str:
    return with_query(f"/datasets/{quote(str(name), safe='')}", **query)


def build_at(id: str, /, **query: str | int | None) -> str:
    return with_query(f"/builds/{quote(id, safe='')}", **query)


def branch_at(name: str) -> str:
    return with_query(BRANCHES, branch=name)


def local_path(text: str | None) -> str:
    """Return a path to go to after signing in; anything but a path here is the first page."""
    if text is None or not text.startswith("/") or text.startswith("//") or "\\" in text:
        return DATASETS
    return text if text.isprintable() else DATASETS


_STEPS = ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h"), (86_400 * 60, 86_400, "d"))
# The tone of each state; the theme has a colour for each tone.
TONES = {
    "succeeded": "good",
    "COMMITTED": "good",
    "fresh": "good",
    "passed": "good",
    "running": "busy",
    "OPEN": "busy",
    "waiting": "quiet",
    "stale": "warn",
    "failed": "bad",
    "aborted": "bad",
    "ABORTED": "quiet",
    "canceled": "quiet",
    "adopted": "taken",
    "skipped": "quiet",
}


def heading(text: Child, *beside: Child) -> Markup:
    """Return the page's title, the target of the skip link."""
    title = tag("h1", text, id="content", tabindex="-1")
    return tag("div", title, beside, class_="heading")


def badge(text: str, tone: str | None = None, title: str | None = None) -> Markup:
    return tag("span", text, class_=f"badge {tone or TONES.get(text, 'quiet')}", title=title)


def mark(*, blue: bool, primary: str) -> Markup:
    """Return the mark of a dataset: blue if the primary branch has a JobSpec that makes it."""
    text = f"made by a JobSpec on {primary}" if blue else f"no JobSpec on {primary} makes it"
    return tag(
        "span", class_=f"mark {'blue' if blue else 'gray'}", role="img", aria_label=text, title=text
    )


def link(text: Child, href: str, **attributes: Attribute) -> Markup:
    return tag("a", text, href=href, **attributes)


def beside(*children: Child) -> Markup:
    """Return a note beside a title."""
    return tag("span", children, class_="beside")


def chips(*children: Child) -> Markup:
    """Return small parts, such as badges and links, side by side."""
    return tag("span", children, class_="chips")


def chip(text: str) -> Markup:
    return tag("span", text, class_="chip")


def separated(children: Iterable[Child]) -> list[Child]:
    """Return children with commas between them."""
    return [part for child in children for part in (", ", child)][1:]


def unseen(text: str) -> Markup:
    """Return a text for screen readers only, such as the heading of a column of signs."""
    return tag("span", text, class_="unseen")


def code(text: str) -> Markup:
    return tag("code", text)


def table(
    headings: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    label: str,
    numbers: Sequence[int] = (),
) -> Markup:
    """Return a table that scrolls on narrow screens; `numbers` are the columns of numbers."""

    def kind(at: int) -> str | None:
        return "number" if at in numbers else None

    head = tag("tr", (tag("th", h, scope="col", class_=kind(i)) for i, h in enumerate(headings)))
    body = (tag("tr", (tag("td", c, class_=kind(i)) for i, c in enumerate(row))) for row in rows)
    drawn = tag("table", tag("thead", head), tag("tbody", list(body)), aria_label=label)
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=label)


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return names with their values, one below the other."""
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs], class_="facts")


def card(title: Child, *body: Child, beside: Child = None, class_: str = "") -> Markup:
    head = tag("div", tag("h2", title), beside, class_="card-head") if title else None
    return tag("section", head, body, class_=f"card {class_}".strip())


def empty(text: Child, hint: Child = None) -> Markup:
    """Return the note of an empty page or card, with a hint what to do."""
    return tag(
        "div", tag("p", text), tag("p", hint, class_="hint") if hint else None, class_="empty"
    )


def command(text: str) -> Markup:
    """Return a command for a shell."""
    return tag("pre", tag("code", text), class_="command", tabindex="0")


def tabs(label: str, entries: Iterable[tuple[str, str, bool]], class_: str = "tabs") -> Markup:
    """Return links of text, address, and whether it is the current page."""
    drawn = (
        link(text, href, aria_current="page" if is_current else None)
        for text, href, is_current in entries
    )
    return tag("nav", drawn, class_=class_, aria_label=label)


def steps(*places: tuple[str, str | None]) -> Markup | None:
    """Return links to the pages of a list before and after this one: text and address."""
    links = [link(text, href, class_="button") for text, href in places if href]
    return tag("nav", links, class_="more", aria_label="Pages of this list") if links else None


def form(
    action: str, *fields: Child, label: str, button: str = "Show", class_: str = "filters"
) -> Markup:
    """Return a form that puts its values into the address, so that the page can be shared."""
    return tag(
        "form",
        fields,
        tag("button", button, type="submit", class_="button"),
        action=action,
        method="get",
        class_=class_,
        role="search",
        aria_label=label,
    )


def field(name: str, label: str, value: str = "", *, hint: str = "") -> Markup:
    box = tag(
        "input", name=name, value=value, placeholder=hint, autocomplete="off", spellcheck="false"
    )
    return tag("label", tag("span", label), box)


def choice(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str) -> Markup:
    """Return a selection; a change submits the form."""
    drawn = [tag("option", text, value=v, selected=v == chosen) for v, text in options]
    return tag("label", tag("span", label), tag("select", drawn, name=name, data_sends=True))


def hidden(name: str, value: str) -> Markup | None:
    return tag("input", type="hidden", name=name, value=value) if value else None


def moment(instant: Instant | None, now: Instant) -> Markup:
    """Return the age of an instant, with the exact time as its title."""
    if instant is None:
        return tag("span", "–", class_="faint")
    text = instant_text(instant)
    return tag("time", ago(instant, now), datetime=text, title=text[:19].replace("T", " ") + " UTC")


def ago(instant: Instant, now: Instant) -> str:
    seconds = max((now - instant) // 1_000_000, 0)
    if seconds < 5:
        return "just now"
    for limit, unit, name in _STEPS:
        if seconds < limit:
            return f"{seconds // unit} {name} ago"
    return instant_text(instant)[:10]


def lasted(started: Instant, ended: Instant) -> str:
    """Return the time between two instants."""
    return duration(max(ended - started, 0) / 1_000_000)


def duration(seconds: float) -> str:
    """Return seconds as `850 ms`, `12.3 s` or `4 min 5 s`."""
    if seconds < 1:
        return f"{int(seconds * 1000)} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def count(number: int, one: str) -> str:
    """Return a number with its noun, as `1 row`, `2,345 rows` or `3 branches`."""
    many = f"{one}es" if one.endswith(("ch", "s")) else f"{one}s"
    return f"{number:,} {one if number == 1 else many}"


def prose(message: str) -> Markup:
    """Return an error message for a page; text in backticks is shown as code."""
    parts = (message[:1].upper() + message[1:]).split("`")
    if len(parts) % 2 == 0:
        return join("`".join(parts))
    return join([code(part) if at % 2 else part for at, part in enumerate(parts)])


def short(id: str) -> str:
    """Return the end of an id: it begins with a timestamp, which is similar within a day."""
    return f"…{id[-8:]}" if len(id) > 12 else id


def cell(value: Any, limit: int = 200) -> Markup:
    """Return a value of a row; null is distinct from an empty text."""
    if value is None:
        return tag("span", "null", class_="faint")
    text = str(value)
    return tag("span", text[:limit] + "…", title=text[:2000]) if len(text) > limit else join(text)
