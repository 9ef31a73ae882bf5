"""What checks found, and the rules by which that counts: which verdict, and which stops a job."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ONLY_RECORDED = "WARN"


class CheckStage(enum.StrEnum):
    """When a check looks: at an input before the transform, at an output after it wrote."""

    PRE = "pre"
    POST = "post"


class Verdict(enum.StrEnum):
    """How data stands to an expectation.

    SILENT is what a comparison with null says: nothing, so it fails nobody, negated or not.
    UNKNOWN is what cannot be evaluated at all; it fails its check.
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
    """Unmet as soon as one is, whatever the others are; met if there are none."""
    return _decided(verdicts, by=Verdict.UNMET)


def met_by_any(verdicts: Collection[Verdict]) -> Verdict:
    """Met as soon as one is, whatever the others are; unmet if there are none."""
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
    # Columns and values of rows, or of groups, that failed it; values are texts.
    samples: tuple[Mapping[str, str | None], ...] = ()

    @property
    def stops(self) -> bool:
        """Whether the job may not publish for it."""
        return not self.passed and self.on_error != _ONLY_RECORDED

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stage": self.stage.value,
            "dataset": self.dataset,
            "on_error": self.on_error,
            "passed": self.passed,
            "expectation": self.expectation,
            "reason": self.reason,
            "samples": [dict(sample) for sample in self.samples],
        }


def check_result_from_json(data: Mapping[str, Any]) -> CheckResult:
    return CheckResult(
        **{**data, "stage": CheckStage(data["stage"]), "samples": tuple(data["samples"])}
    )


def stopping(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """The results for which a job must not publish, in their order; none means it may."""
    return tuple(result for result in results if result.stops)
