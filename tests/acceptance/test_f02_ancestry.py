"""F02: a chain that does not follow the ancestry fails before any side effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.log import list_publications
from headgate.catalog.records import list_branches, open_transactions_of
from headgate.errors import AncestryViolated, HeadgateError, InputNotFound, InvalidChain
from headgate.model.ancestry import output_place
from headgate.model.names import parse_dataset_name
from headgate.store.embedded import Store
from tests.support.pipelines import build, files_spec, publish, states
from tests.support.stores import new_store, put

# Each branch as `child<parent`, a root by its name alone; files datasets represent any kind.
TREE = ("master", "develop<master", "feature<develop")
FORK = ("master", "develop<master", "feature<master")


def _dataset(store: Store, name: str, *branches: str) -> None:
    handle = store.dataset(name).create(kind="files", branch="seed", create=True)
    for text in branches:
        child, _, parent = text.partition("<")
        branch = handle.branch(child).create(parent=parent or None)
        if not parent:
            put(branch, made="1")
    handle.branch("seed").delete()


def _publish(store: Store, branch: str = "feature") -> None:
    publish(store, branch, files_spec("s.b", "s.a"), files_spec("s.c", "s.a", logic="other"))


def _state(store: Store) -> tuple[object, object]:
    return store.database.read(lambda c: (list_branches(c), list_publications(c, limit=1000)))


def test_f02_ancestry_failure_names_the_pair_and_changes_nothing(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        _dataset(store, "s.a", "master")
        _dataset(store, "s.b", *TREE)
        _dataset(store, "s.c", *FORK)
        _publish(store)
        before = _state(store)

        with pytest.raises(AncestryViolated) as failed:
            store.build(["s.b", "s.c"], branch="feature", fallback=["develop", "master"])

        assert failed.value.facts["dataset"] == "s.c"
        assert failed.value.facts["pair"] == ["feature", "develop"]
        assert "branch reparent" in failed.value.message
        assert _state(store) == before
        assert store.database.read(lambda c: open_transactions_of(c)) == []
        valid = build(store, "s.b", branch="feature", fallback=["develop", "master"])
        assert states(valid) == {"s.b": "succeeded"}


def test_f02_jobspec_is_found_on_a_branch_that_no_dataset_has(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _dataset(store, "s.a", "master")
        _dataset(store, "s.b", "master", "feature<master")
        _publish(store, "develop")
        outcome = build(store, "s.b", branch="feature", fallback=["develop", "master"])
        assert states(outcome) == {"s.b": "succeeded"}
        assert [job.to_json()["jobspec_branch"] for job in outcome.jobs] == ["develop"]


@pytest.mark.parametrize(
    ("branches", "fallback", "outcome"),
    [
        (("master",), ["master"], "made off master"),
        (TREE, ["develop", "master"], "there"),
        (TREE, ["master"], "there"),
        (("master", "develop<master"), ["develop", "master"], "made off develop"),
        (("master", "feature<master"), ["develop", "master"], "there"),
        (("master", "feature<master"), ["unknown", "master", "also-unknown"], "there"),
        ((), ["master"], "a root"),
        (TREE, ["master", "develop"], AncestryViolated),
        (("master", "feature"), ["master"], AncestryViolated),
        (("master", "feature<master"), ["master", "master"], InvalidChain),
    ],
)
def test_f02_output_of_a_chain_is_placed_or_refused(
    branches: tuple[str, ...],
    fallback: list[str],
    outcome: str | type[HeadgateError],
    made_catalog_url: str,
    tmp_path: Path,
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _dataset(store, "s.a", "master")
        _dataset(store, "s.b", *branches)
        _publish(store)
        if not isinstance(outcome, str):
            with pytest.raises(outcome):
                store.decide(["s.b"], branch="feature", fallback=fallback)
            return
        plan = store.decide(["s.b"], branch="feature", fallback=fallback)
        place = plan.places[parse_dataset_name("s.b")]
        parent = place.parent.name if place.parent else None
        found = "there" if place.branch else f"made off {parent}" if parent else "a root"
        assert found == outcome


def test_f02_build_on_master_with_its_child_as_fallback_is_refused(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _dataset(store, "s.a", "master")
        _dataset(store, "s.b", "master", "feature<master")
        _publish(store)
        with pytest.raises(AncestryViolated):
            store.decide(["s.b"], branch="master", fallback=["feature"])


def test_f02_input_that_is_nowhere_is_not_found(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store)
        with pytest.raises(InputNotFound):
            store.decide(["s.b"], branch="feature", fallback=["master"])


def test_f02_place_of_an_output_without_branches_remembers_its_chain() -> None:
    place = output_place(("feature", "develop", "master"), {})
    assert (place.parent, place.remembered_chain) == (None, ("develop", "master"))
