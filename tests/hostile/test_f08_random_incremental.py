"""Random inputs, resets, branches and semantic versions: incremental builds equal a fold."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.ids import TransactionId
from headgate.model.jobspecs import IncrementalSpec
from headgate.model.nouns import BuildState
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from tests.support.copying import CopyJobs
from tests.support.incremental_model import IncrementalModel, Step
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import content, files_branch, new_settings

_MANY = os.environ.get("CI") == "true"
_FILES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), min_size=1, max_size=2)
_CHANGE = st.tuples(st.sampled_from(["UPDATE", "UPDATE", "SNAPSHOT", "DELETE"]), _FILES)
_RESET = st.tuples(st.just("reset"), st.integers(1, 3))
_BUILD = st.tuples(st.sampled_from(["build", "flaky"]), st.sampled_from(["master", "feature"]))
_MEANING = st.tuples(st.just("meaning"), st.sampled_from(["master", "feature"]))
_STEPS = st.lists(st.one_of(_CHANGE, _CHANGE, _BUILD, _BUILD, _RESET, _MEANING), max_size=10)


class Both:
    """A store and its model, which execute the same steps."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.model = IncrementalModel()
        self.given: BranchHandle = files_branch(store, "s.in")
        self.ids: list[TransactionId] = []
        self._publish("master", 1)
        self.change("UPDATE", {"a": "1"})

    def take(self, step: tuple[str, Any]) -> None:
        what, how = step
        if what in {"build", "flaky"}:
            self.build(how, failures=int(what == "flaky"))
        elif what == "reset":
            self.reset(how)
        elif what == "meaning":
            self._publish(how, self.model.versions.get(how, 1) + 1)
        else:
            self.change(what, how)

    def change(self, type: str, files: dict[str, str]) -> None:
        before = self.model.history[-1].files() if self.model.history else {}
        gone = [path for path in files if path in before] if type == "DELETE" else []
        if type == "DELETE" and not gone:
            return
        with self.given.transaction(type) as transaction:
            for path, text in files.items():
                if type != "DELETE":
                    transaction.write(path, text.encode())
            if gone:
                transaction.remove(*gone)
        kept = {} if type == "SNAPSHOT" else {p: t for p, t in before.items() if p not in gone}
        tree = kept if type == "DELETE" else kept | files
        self.model.history.append(Step(type, tuple(sorted(tree.items()))))
        self.ids.append(self._view())

    def reset(self, back: int) -> None:
        if back < len(self.ids):
            self.given.reset(to=self.ids[-1 - back])
            del self.ids[-back:], self.model.history[-back:]

    def build(self, branch: str, failures: int) -> None:
        """Run a build whose first attempts fail halfway; the next attempt completes it."""
        expected = self.model.build(branch)
        jobs = CopyJobs(store=self.store, failing={"s.out": failures})
        fallback = () if branch == "master" else ("master",)
        outcome = build(
            self.store,
            "s.out",
            jobs=jobs,
            branch=branch,
            fallback=fallback,
            adopt="off",
            retries=failures,
        )
        assert outcome.state is BuildState.SUCCEEDED
        extents = {True: "incremental", False: "full"}
        assert [extents[one.incremental] for one in jobs.copied] == (
            [] if expected == "fresh" else [expected] * (failures + 1)
        )
        if branch in self.model.results:
            shown = content(self.store.dataset("s.out").branch(branch))
            assert shown == self.model.shown(branch)

    def _publish(self, branch: str, version: int) -> None:
        self.model.versions[branch] = version
        declared = IncrementalSpec(semantic_version=version)
        # A new semantic version changes the logic, as with real logic hashes.
        made = files_spec("s.out", "s.in", logic=f"v{version}", incremental=declared)
        publish(self.store, branch, made)

    def _view(self) -> TransactionId:
        view = self.given.load().view
        assert view is not None
        return view


@pytest.mark.timeout(900)
@settings(max_examples=80 if _MANY else 12)
@given(steps=_STEPS)
def test_incremental_builds_of_any_history_do_what_the_model_does(
    steps: list[tuple[str, Any]],
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        with Store(new_settings(f"sqlite:///{root}/c.db", root)) as store:
            both = Both(store)
            for step in [*steps, ("build", "master"), ("build", "feature")]:
                both.take(step)
            assert_store_sound(store)
