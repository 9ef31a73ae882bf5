"""F13: the whole life of a new dataset, from before it exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.errors import AncestryViolated
from headgate.model.nouns import BuildState
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.stores import branches_by_name, new_store


def _on_feature(store: Store, **options: Any) -> dict[str, str]:
    return states(build(store, "s.d", branch="feature", fallback=["master"], **options))


def test_f13_dataset_made_on_feature_is_promoted_and_built_there_again(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "feature", files_spec("s.d"))
        assert _on_feature(store) == {"s.d": "succeeded"}
        [feature] = branches_by_name(store, "s.d").values()
        assert (feature.name, feature.parent, feature.remembered_chain) == (
            "feature",
            None,
            ("master",),
        )

        publish(store, "master", files_spec("s.d"))
        promoting = FileJobs(store=store)
        assert states(build(store, "s.d", jobs=promoting)) == {"s.d": "adopted"}
        assert promoting.ran == []
        master = branches_by_name(store, "s.d")["master"]
        assert (master.parent, master.remembered_chain) == (None, ())
        assert shown(store, "s.d") == shown(store, "s.d", branch="feature")

        assert _on_feature(store) == {"s.d": "skipped"}
        publish(store, "feature", files_spec("s.d", logic="2"))
        assert _on_feature(store) == {"s.d": "succeeded"}
        assert shown(store, "s.d", branch="feature") == {"s.d": "s.d2()"}
        assert shown(store, "s.d") == {"s.d": "s.d1()"}
        assert_store_sound(store)


def test_f13_two_roots_made_by_hand_fail_until_they_are_reparented(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        dataset = store.dataset("s.d").create(kind="files", branch="master")
        dataset.branch("feature").create(parent=None)
        publish(store, "feature", files_spec("s.d"))
        with pytest.raises(AncestryViolated, match="branch reparent"):
            _on_feature(store)
        dataset.branch("feature").reparent(under="master")
        outcome = build(store, "s.d", branch="feature", fallback=["master"])
        assert outcome.state is BuildState.SUCCEEDED
        assert_store_sound(store)
