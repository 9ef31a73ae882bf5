"""What an examination found, check by check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.catalog.soundness import Finding
from headgate.errors import HeadgateError

# A store that is broken in a thousand places is told of in so many.
_MOST = 100


@dataclass(kw_only=True)
class Check:
    """One thing that was looked at: what is wrong with it, and what is good to know."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(kw_only=True)
class Examined:
    """The report of a doctor."""

    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "checks": [
                {
                    "check": check.name,
                    "ok": check.ok,
                    "findings": [asdict(finding) for finding in check.findings],
                    "notes": check.notes,
                }
                for check in self.checks
            ],
        }


def make_check(name: str, found: Iterable[Finding], notes: Iterable[str] = ()) -> Check:
    """Carries a check out; an error that ends it is a finding too."""
    check = Check(name=name)
    try:
        for finding in found:
            if len(check.findings) == _MOST:
                check.notes.append(f"there is more like this: only the first {_MOST} are listed")
                break
            check.findings.append(finding)
    except HeadgateError as error:
        check.findings.append(from_error(error, where=name))
    check.notes.extend(notes)
    return check


def from_error(error: HeadgateError, *, where: str) -> Finding:
    """An error as a finding; its sentence says what to do."""
    return Finding(what=error.message, where=where, remedy="Mend that, then look again.")


def chained(*parts: Iterable[Finding]) -> Iterator[Finding]:
    for part in parts:
        yield from part
