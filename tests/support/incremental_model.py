"""Model of incremental builds in memory, written from the design and not from the code."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

Tree = dict[str, str]


@dataclass(frozen=True)
class Step:
    """One transaction of the input: its type, and the content after it."""

    type: str
    tree: tuple[tuple[str, str], ...]

    def files(self) -> Tree:
        return dict(self.tree)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One build of the output: the step that it read, and its logic."""

    read: Step
    version: int


@dataclass(kw_only=True)
class IncrementalModel:
    """One input on master; one output on master and on feature, which falls back to it."""

    history: list[Step] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=lambda: {"master": 1})
    results: dict[str, Result] = field(default_factory=dict)

    def build(self, branch: str) -> str:
        """Return `fresh`, `incremental` or `full`."""
        version = self.versions.get(branch, self.versions["master"])
        base = self.results.get(branch) or self.results.get("master")
        now = self.history[-1]
        if base is not None and (base.version, base.read.tree) == (version, now.tree):
            return "fresh"
        extent = "incremental" if base and self._only_added(base, version) else "full"
        self.results[branch] = Result(read=now, version=version)
        return extent

    def shown(self, branch: str) -> Tree:
        """Return the content of an output: that of its input at the build, for any extent."""
        result = self.results[branch]
        return {path: f"{text}v{result.version}" for path, text in result.read.tree}

    def _only_added(self, base: Result, version: int) -> bool:
        # By identity: two steps with equal content are still two steps.
        places = [at for at, step in enumerate(self.history) if step is base.read]
        if base.version != version or not places:
            return False
        since = self.history[places[0] :]
        return all(_adds(a, b) for a, b in pairwise(since))


def _adds(before: Step, after: Step) -> bool:
    if before.tree == after.tree:
        return True
    if after.type in {"SNAPSHOT", "DELETE"}:
        return False
    return set(before.tree) <= set(after.tree)
