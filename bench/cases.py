"""Benches: each has subjects to compare, and cases to time on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")

Timed = Callable[[], object]
Prepare = Callable[[S], Timed]
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Amount of data: for a quick look, or for reported figures."""

    quick: bool = False
    # Scale factor of TPC-H: 1 is about a gigabyte.
    tpch_factor: float | None = None
    # Rows of the target table and of the source files; ten million by default.
    merged_rows: int | None = None

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, kw_only=True)
class Case(Generic[S]):
    """One timed operation; `prepare` runs before each repetition and is not timed."""

    name: str
    prepare: Prepare[S]
    target_ms: float | None = None
    # True: must cost the same on the last subject as on the first.
    flat: bool = False
    # Maximum cost on the last subject as a multiple of the first, at any noise.
    target_ratio: float | None = None
    # Maximum extra cost on the last subject in milliseconds.
    target_extra_ms: float | None = None
    # Maximum cost as a multiple of the floor, on every subject.
    target_floor: float | None = None


class Unavailable(Exception):
    """A bench that this machine cannot run; the message names the missing part."""


class Bench(Generic[S]):
    """Cases that are timed in turns on several subjects, so that noise affects all alike."""

    def __init__(
        self,
        name: str,
        subjects: Callable[[Scale, Tell], AbstractContextManager[Mapping[str, S]]],
        *,
        repetitions: int = 100,
        quick_repetitions: int = 20,
        warm_ups: int = 5,
        floor: str | None = None,
        counts_sql: bool = True,
    ) -> None:
        self.name = name
        self.subjects = subjects
        self.repetitions = repetitions
        self.quick_repetitions = quick_repetitions
        self.warm_ups = warm_ups
        # Name of the fastest possible case; the others are shown as multiples of it.
        self.floor = floor
        # False for cases that take minutes: counting needs one more repetition.
        self.counts_sql = counts_sql
        self.cases: list[Case[S]] = []

    def case(
        self,
        name: str,
        *,
        target_ms: float | None = None,
        flat: bool = False,
        target_ratio: float | None = None,
        target_extra_ms: float | None = None,
        target_floor: float | None = None,
    ) -> Callable[[Prepare[S]], Prepare[S]]:
        """Register a function that prepares one repetition and returns the function to time."""

        def register(prepare: Prepare[S]) -> Prepare[S]:
            self.cases.append(
                Case(
                    name=name,
                    prepare=prepare,
                    target_ms=target_ms,
                    flat=flat,
                    target_ratio=target_ratio,
                    target_extra_ms=target_extra_ms,
                    target_floor=target_floor,
                )
            )
            return prepare

        return register

    def chosen(self, only: str | None) -> list[Case[S]]:
        """Return the cases whose full name contains the text; any match includes the floor."""
        if only is None:
            return self.cases
        found = [case for case in self.cases if only.lower() in f"{self.name} {case.name}".lower()]
        floor = [case for case in self.cases if case.name == self.floor and case not in found]
        return [*floor, *found] if found else []
