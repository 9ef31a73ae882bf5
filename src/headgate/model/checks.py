"""Results of checks, how verdicts combine, and which results keep a job from publishing."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.model.nouns import Json, as_json

_ONLY_RECORDED = "WARN"


class CheckStage(enum.StrEnum):
    """The stage of a check: on an input before the transform, or on an output after it."""

    PRE = "pre"
    POST = "post"


class Verdict(enum.StrEnum):
    """The result of an expectation on data.

    SILENT is the result of a comparison with null: it passes, negated or not. UNKNOWN is the
    result of an expectation that cannot be evaluated: it fails its check.
    """

    MET = "met"
    UNMET = "unmet"
    SILENT = "silent"
    UNKNOWN = "unknown"

    @property
    def passes(self) -> bool:
        return self in {Verdict.MET, Verdict.SILENT}

    @property
    def negated(self) -> Verdict:
        return {Verdict.MET: Verdict.UNMET, Verdict.UNMET: Verdict.MET}.get(self, self)


def met_by_all(verdicts: Collection[Verdict]) -> Verdict:
    """Return UNMET if one of the verdicts is; MET if there are none."""
    return _decided(verdicts, by=Verdict.UNMET)


def met_by_any(verdicts: Collection[Verdict]) -> Verdict:
    """Return MET if one of the verdicts is; UNMET if there are none."""
    return _decided(verdicts, by=Verdict.MET)


def _decided(verdicts: Collection[Verdict], *, by: Verdict) -> Verdict:
    for decisive in (by, Verdict.UNKNOWN, Verdict.SILENT):
        if decisive in verdicts:
            return decisive
    return by.negated


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check's outcome on one dataset, with numbers and, where it failed, a few values."""

    name: str
    stage: CheckStage
    dataset: str
    # FAIL or WARN, as its CheckSpec has it.
    on_error: str
    passed: bool
    expectation: str
    reason: str
    # Columns and values, as text, of rows or groups that failed the check.
    samples: tuple[Mapping[str, str | None], ...] = ()

    @property
    def is_blocking(self) -> bool:
        """True if the job may not publish because of this result."""
        return not self.passed and self.on_error != _ONLY_RECORDED

    def to_json(self) -> Json:
        return as_json(self)


def check_result_from_json(data: Mapping[str, Any]) -> CheckResult:
    return CheckResult(
        **{**data, "stage": CheckStage(data["stage"]), "samples": tuple(data["samples"])}
    )


def blocking(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results because of which a job may not publish, in their order."""
    return tuple(result for result in results if result.is_blocking)
