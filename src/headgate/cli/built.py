"""What a built transaction says of itself, as a person reads it; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.cli.formatting import count_text
from headgate.model.incrementality import REFUSED


def built_text(facts: Mapping[str, Any]) -> str:
    """`incremental: reads shop.orders 4..5; 3 checks passed`; empty for what no build made."""
    adopted = facts.get("adopted_from")
    parts = [
        f"adopted from {adopted['branch']}" if adopted else "",
        extent_text(facts.get("incremental")),
        checks_text(facts.get("checks") or ()),
    ]
    return "; ".join(part for part in parts if part)


def extent_text(incremental: Mapping[str, Any] | None) -> str:
    """How much is read, or why all of it; in the words of a plan."""
    if incremental is None:
        return ""
    if incremental["reason"]:
        # A plan of a transform that must not be built in full says that it is going to fail.
        word = REFUSED if incremental.get("refused") else incremental["extent"]
        return f"{word}: {incremental['reason']}"
    spans = ", ".join(_span_text(span) for span in incremental["reads"]) or "no input"
    return f"{incremental['extent']}: reads {spans}"


def checks_text(checks: Sequence[Mapping[str, Any]]) -> str:
    """`3 checks passed`, or those that did not, by name."""
    if not checks:
        return ""
    missed = [check["name"] for check in checks if not check["passed"]]
    if not missed:
        return f"{count_text(len(checks), 'check')} passed"
    named = ", ".join(repr(name) for name in missed)
    return f"{len(missed)} of {count_text(len(checks), 'check')} not met: {named}"


def _span_text(span: Mapping[str, Any]) -> str:
    if span["since"] is None:
        return f"all of {span['dataset']}"
    if span["numbers"] is None:
        return f"nothing new of {span['dataset']}"
    first, last = span["numbers"]
    return f"{span['dataset']} {first}..{last}" if first != last else f"{span['dataset']} {first}"
