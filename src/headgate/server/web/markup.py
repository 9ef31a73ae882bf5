"""HTML that cannot be injected into: text is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_VOID = {"br", "hr", "img", "input", "link", "meta"}


class Markup(str):
    """HTML that is safe to send."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element; `class_` is `class`, `aria_label` is `aria-label`, None and False say nothing."""
    opening = f"<{name}{''.join(_attribute(key, attributes[key]) for key in attributes)}>"
    if name in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Children one after the other; whatever is not markup yet is escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int):
        return Markup(escape(str(children)))
    return Markup("".join(join(child) for child in children))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
