"""Model of builds in memory, written from the design and not from the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Specs = Mapping[str, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Made:
    """One result: its logic and the texts that it read, which together are its text."""

    name: str
    logic: str
    read: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.name}{self.logic}({','.join(self.read)})"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request for a build."""

    branch: str
    targets: tuple[str, ...]
    failing: frozenset[str] = frozenset()
    aborting: frozenset[str] = frozenset()
    atomic: bool = False

    @property
    def chain(self) -> tuple[str, ...]:
        return ("master",) if self.branch == "master" else (self.branch, "master")


@dataclass(kw_only=True)
class Model:
    """Views of each branch, logic published on each branch, and all results ever committed."""

    specs: dict[str, Specs] = field(default_factory=dict)
    views: dict[str, dict[str, Made]] = field(default_factory=dict)
    committed: set[Made] = field(default_factory=set)

    def build(self, wanted: Wanted) -> dict[str, str]:
        """Execute the build; return the state of each job, by the dataset that it produces."""
        before = {branch: dict(shown) for branch, shown in self.views.items()}
        known = set(self.committed)
        states = self._run(wanted, self._plan(wanted))
        if wanted.atomic and {"failed", "aborted"} & set(states.values()):
            self.views, self.committed = before, known
            kept = {"failed", "skipped"}
            return {name: s if s in kept else "aborted" for name, s in states.items()}
        return states

    def shown(self, branch: str) -> dict[str, str]:
        return {name: made.text for name, made in self.views.get(branch, {}).items()}

    def _plan(self, wanted: Wanted) -> dict[str, Made | str]:
        """Return for each job, in order: the adopted result, `fresh` or `stale`."""
        plan: dict[str, Made | str] = {}
        for name in self._jobs(wanted):
            logic, inputs = self._spec(name, wanted)
            if any(plan[given] == "stale" for given in inputs):
                plan[name] = "stale"
                continue
            would = Made(name, logic, tuple(self._planned(g, plan, wanted).text for g in inputs))
            if self._view(name, wanted) == would:
                plan[name] = "fresh"
            else:
                plan[name] = would if would in self.committed else "stale"
        return plan

    def _run(self, wanted: Wanted, plan: Mapping[str, Made | str]) -> dict[str, str]:
        states: dict[str, str] = {}
        for name, decided in plan.items():
            if decided == "fresh":
                states[name] = "skipped"
            elif isinstance(decided, Made):
                self._commit(decided, wanted)
                states[name] = "adopted"
        for name in (name for name, decided in plan.items() if decided == "stale"):
            states[name] = self._run_job(name, wanted, states)
        return states

    def _run_job(self, name: str, wanted: Wanted, states: Mapping[str, str]) -> str:
        logic, inputs = self._spec(name, wanted)
        if any(states[given] in {"failed", "aborted"} for given in inputs):
            return "aborted"
        read = [self._view(given, wanted) for given in inputs]
        if name in wanted.failing or None in read:
            return "failed"
        if name not in wanted.aborting:
            self._commit(Made(name, logic, tuple(made.text for made in read if made)), wanted)
        return "succeeded"

    def _jobs(self, wanted: Wanted) -> list[str]:
        """Return the targets and their upstream datasets; names are in an order of dependency."""
        found: set[str] = set()
        waiting: Iterable[str] = wanted.targets
        while waiting:
            found |= set(waiting)
            waiting = [g for n in waiting for g in self._spec(n, wanted)[1] if g not in found]
        return sorted(found)

    def _spec(self, name: str, wanted: Wanted) -> tuple[str, tuple[str, ...]]:
        return next(self.specs[b][name] for b in wanted.chain if name in self.specs.get(b, {}))

    def _planned(self, name: str, plan: Mapping[str, Made | str], wanted: Wanted) -> Made:
        decided = plan[name]
        made = decided if isinstance(decided, Made) else self._view(name, wanted)
        assert made is not None
        return made

    def _view(self, name: str, wanted: Wanted) -> Made | None:
        shown = (self.views.get(branch, {}).get(name) for branch in wanted.chain)
        return next((made for made in shown if made is not None), None)

    def _commit(self, made: Made, wanted: Wanted) -> None:
        self.views.setdefault(wanted.branch, {})[made.name] = made
        self.committed.add(made)
