"""Published JobSpecs: one repository for each dataset, and marks for removed ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from headgate.catalog.jobspecs import load_jobspecs, publish_jobspecs
from headgate.errors import Conflict, JobSpecNotFound
from headgate.store.embedded import Store
from tests.support.pipelines import files_spec
from tests.support.stores import new_store


def _publish(store: Store, repository: str, *outputs: str, branch: str = "master") -> list[str]:
    """Publish the outputs that a repository declares; return those marked as removed."""
    _, gone = publish_jobspecs(
        store.database,
        branch=branch,
        repository=repository,
        commit="c0ffee",
        clean=True,
        actor="ana",
        specs=[{"outputs": [name], "jobspec": files_spec(name).to_json()} for name in outputs],
    )
    return gone


def _owners(store: Store, branch: str = "master") -> set[tuple[str, str]]:
    found = store.database.read(lambda c: load_jobspecs(c, branch=branch))
    return {(s.repository, name) for s in found if not s.removed for name in s.body["outputs"]}


def test_publication_of_more_outputs_than_one_statement_names_has_all_of_them(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        names = [f"s.x{number}" for number in range(1001)]
        for kept in (names, names[:3]):
            gone = _publish(store, "shop", *kept)
            assert _owners(store) == {("shop", name) for name in kept}
            assert gone == sorted(set(names) - set(kept))


@pytest.mark.parametrize("branch", ["master", "feature"])
def test_dataset_of_one_repository_is_refused_to_another_which_is_told_the_first(
    made_catalog_url: str, tmp_path: Path, branch: str
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store, "shop", "s.x")
        with pytest.raises(Conflict, match=r"s\.x is made by the repository shop") as refused:
            _publish(store, "bank", "s.w", "s.x", branch=branch)
        assert refused.value.facts["owner"] == "shop"
        assert (_owners(store), _owners(store, "feature")) == ({("shop", "s.x")}, set())


def test_dataset_that_two_repositories_want_at_once_is_given_to_one(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store, ThreadPoolExecutor(2) as pool:
        for number in range(5):
            barrier = Barrier(2)

            def claim(side: str, name: str, barrier: Barrier) -> bool:
                barrier.wait()
                try:
                    _publish(store, side, name, branch=side)
                except Conflict:
                    return False
                return True

            asked = [pool.submit(claim, s, f"s.x{number}", barrier) for s in ("shop", "bank")]
            assert sorted(one.result() for one in asked) == [False, True]


def test_dataset_that_its_repository_gave_up_may_be_anothers(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store, "shop", "s.x", "s.y")
        assert _publish(store, "shop", "s.y") == ["s.x"]
        _publish(store, "bank", "s.x")
        assert _owners(store) == {("shop", "s.y"), ("bank", "s.x")}


def test_removed_mark_stops_the_fallback_and_says_where_it_is(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _publish(store, "shop", "s.x")
        _publish(store, "shop", "s.x", branch="feature")
        assert store.decide(["s.x"], branch="feature", fallback=["master"]).decisions
        _publish(store, "shop", branch="feature")
        with pytest.raises(JobSpecNotFound, match="feature") as stopped:
            store.decide(["s.x"], branch="feature", fallback=["master"])
        assert stopped.value.facts["removed_on"] == "feature"
