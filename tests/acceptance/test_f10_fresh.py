"""F10: fresh outputs are not built again; changed ones are, with their dependents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.model.jobspecs import IncrementalSpec
from headgate.model.nouns import BuildState
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.repositories import Work, new_repository
from tests.support.stores import branches_by_name, content, everything, new_store

# Three that import one function, three that read those, and 194 independent ones.
_SHARING = ["big.a0", "big.a1", "big.a2"]
_AFTER = ["big.b0", "big.b1", "big.b2"]
_OTHERS = [f"big.c{n}" for n in range(194)]
_ALL = [*_SHARING, *_AFTER, *_OTHERS]
_TRANSFORM = """
@transform(out=Output("{name}", kind="files"){given})
def {function}(out{argument}):
    out.filesystem()
"""


def _transform(name: str, given: str | None = None) -> str:
    return _TRANSFORM.format(
        name=name,
        function=name.partition(".")[2],
        given=f', x=Input("{given}")' if given else "",
        argument=", x" if given else "",
    )


def _project(root: Path) -> Work:
    work = new_repository(root)
    head = "from headgate.transforms import Input, Output, transform\n"
    work.write(lib____init__="", lib__shared="def rate():\n    return 1\n")
    for name in _SHARING:
        text = f"{head}from lib.shared import rate\n{_transform(name)}"
        work.write(**{f"sharing_{name[-1]}": text})
    pairs = zip(_AFTER, _SHARING, strict=True)
    work.write(after=head + "".join(_transform(name, given) for name, given in pairs))
    for start in range(0, len(_OTHERS), 20):
        part = _OTHERS[start : start + 20]
        # Half are sources; each of the others reads one of them.
        texts = [_transform(name, part[n - 10] if n >= 10 else None) for n, name in enumerate(part)]
        work.write(**{f"others_{start:03}": head + "".join(texts)})
    work.commit()
    return work


def _build(store: Store, targets: list[str] = _ALL, **options: Any) -> list[str]:
    """Build, and return the jobs that ran."""
    jobs = FileJobs(store=store)
    assert build(store, targets, jobs=jobs, **options).state is BuildState.SUCCEEDED
    return sorted(jobs.ran)


def _republish(store: Store, work: Work, **files: str) -> None:
    work.write(**files)
    work.commit()
    store.publish_jobspecs(work.root)


@pytest.mark.timeout(600)
def test_f10_two_hundred_datasets_are_rebuilt_only_where_logic_changed(
    made_catalog_url: str, tmp_path: Path
) -> None:
    work = _project(tmp_path / "repository")
    with new_store(made_catalog_url, tmp_path) as store:
        store.publish_jobspecs(work.root)
        assert _build(store) == sorted(_ALL)

        _check_nothing_runs(store)
        others = (work.root / "others_000.py").read_text()
        _republish(store, work, others_000=f"# a remark\n{others}")
        _check_nothing_runs(store)

        work.git("checkout", "--quiet", "-b", "feature")
        _republish(store, work, lib__shared="def rate():\n    return 2\n")
        feature: dict[str, Any] = {"branch": "feature", "fallback": ["master"]}
        assert _build(store, **feature) == sorted([*_SHARING, *_AFTER])
        on_feature = {name for name in _ALL if "feature" in branches_by_name(store, name)}
        assert on_feature == {*_SHARING, *_AFTER}

        work.git("checkout", "--quiet", "master")
        work.git("merge", "--quiet", "feature")
        store.publish_jobspecs(work.root)
        assert _build(store) == []
        assert shown(store, *_AFTER) == shown(store, *_AFTER, branch="feature")


def _check_nothing_runs(store: Store) -> None:
    """Check that a build adds no job, transaction or publication, only its own record."""
    ours = ("branches", "transactions", "publications", "moves", "versions")
    before = everything(store)
    assert _build(store) == []
    after = everything(store)
    assert {name: after[name] for name in ours} == {name: before[name] for name in ours}


def test_f10_jobspec_of_master_is_used_for_feature_and_lands_there(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
        _build(store, ["s.y"])
        on_feature: dict[str, Any] = {"branch": "feature", "fallback": ["master"]}
        assert _build(store, ["s.y"], **on_feature) == []
        assert set(branches_by_name(store, "s.y")) == {"master"}

        assert _build(store, ["s.y"], **on_feature, force=True, upstream=False) == ["s.y"]
        assert set(branches_by_name(store, "s.y")) == {"master", "feature"}
        assert set(branches_by_name(store, "s.x")) == {"master"}
        assert _build(store, ["s.y"], force=True) == ["s.x", "s.y"]
        assert_store_sound(store)


def test_f10_incremental_is_fresh_too_and_never_fresh_always_runs(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(
            store,
            "master",
            files_spec("s.x"),
            files_spec("s.i", "s.x", incremental=IncrementalSpec()),
            files_spec("s.n", "s.x", fresh="never"),
        )
        assert _build(store, ["s.i", "s.n"]) == ["s.i", "s.n", "s.x"]
        assert _build(store, ["s.i", "s.n"]) == ["s.n"]
        assert_store_sound(store)


def test_f10_transaction_that_a_reset_took_off_is_never_adopted_again(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x"))
        _build(store, ["s.x"])
        first = branches_by_name(store, "s.x")["master"].view
        assert first is not None
        publish(store, "master", files_spec("s.x", logic="2"))
        _build(store, ["s.x"])
        store.dataset("s.x").branch("master").reset(to=first)

        publish(store, "other", files_spec("s.x", logic="2"))
        assert states(build(store, "s.x", branch="other")) == {"s.x": "succeeded"}
        assert states(build(store, "s.x", force=True)) == {"s.x": "succeeded"}
        publish(store, "master", files_spec("s.x"))
        assert states(build(store, "s.x")) == {"s.x": "adopted"}
        assert_store_sound(store)


def test_f10_result_of_a_dirty_tree_is_not_adopted(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "feature", files_spec("s.x"), clean=False)
        _build(store, ["s.x"], branch="feature")
        publish(store, "master", files_spec("s.x"))
        assert states(build(store, "s.x")) == {"s.x": "succeeded"}


def test_f10_transaction_that_leaves_the_content_makes_nothing_stale(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x", fresh=3600.0), files_spec("s.y", "s.x"))
        _build(store, ["s.y"])
        for name in ("s.x", "s.y"):
            here = store.dataset(name).branch("master")
            with here.transaction("UPDATE") as same:
                for path, text in content(here).items():
                    same.write(path, text.encode())
        assert _build(store, ["s.y"]) == []
        assert _build(store, ["s.y"], branch="feature", fallback=["master"]) == []
