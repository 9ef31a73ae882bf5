"""T01: a result that a reset removed from a branch stays off it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from headgate.builds import run
from headgate.builds.open import OpenedBuild, OpeningRequest, open_build
from headgate.builds.report import BuildOutcome
from headgate.catalog.database import Database
from headgate.catalog.migrate import closing_database, migrate
from headgate.catalog.schema import holds
from headgate.catalog.schema import store as facts
from headgate.errors import HeadgateError
from headgate.model.access import Grant, Role
from headgate.model.changes import Receipt
from headgate.model.ids import instant_text
from headgate.model.jobspecs import IncrementalSpec, ParameterSpec
from headgate.server.web.branches_page import branches_page
from headgate.server.web.build_page import build_page
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.page import Page, Visit
from headgate.spark.engines import SharedJvm
from headgate.store.embedded import Store
from tests.support.copying import CopyJobs
from tests.support.oracle import assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.projects import new_project
from tests.support.stores import branches_by_name, files_branch, new_store, put
from tests.support.tables import create_tables, read_table
from tests.support.upkeep import let_days_pass, tidy_twice

FEATURE: dict[str, Any] = {"branch": "feature", "fallback": ["master"]}
HELD = ("skipped", "held")


def _view(store: Store, name: str, branch: str = "master") -> str:
    view = branches_by_name(store, name)[branch].view
    assert view is not None
    return view


def _reset(store: Store, name: str, to: str, branch: str = "master") -> Receipt:
    return store.dataset(name).branch(branch).reset(to=to)


def _found(outcome: BuildOutcome) -> dict[str, tuple[str, str]]:
    return {job.title: (job.state.value, job.reason.value) for job in outcome.jobs}


def _promoted(store: Store) -> tuple[str, str]:
    """Build logic 2 on feature, and adopt it on master; return master's views before and after."""
    publish(store, "master", files_spec("s.x"))
    build(store, "s.x")
    before = _view(store, "s.x")
    publish(store, "feature", files_spec("s.x", logic="2"))
    assert states(build(store, "s.x", **FEATURE)) == {"s.x": "succeeded"}
    publish(store, "master", files_spec("s.x", logic="2"))
    assert states(build(store, "s.x")) == {"s.x": "adopted"}
    return before, _view(store, "s.x")


def _change_logic(store: Store, _after: str) -> BuildOutcome:
    publish(store, "master", files_spec("s.x", logic="3"))
    return build(store, "s.x")


def _holds(store: Store) -> int:
    return len(_all_holds(store))


def _force(store: Store, _after: str) -> BuildOutcome:
    return build(store, "s.x", force=True)


def _reset_forward(store: Store, after: str) -> BuildOutcome:
    _reset(store, "s.x", after)
    return build(store, "s.x")


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (_change_logic, ("succeeded", "stale-logic")),
        (_force, ("succeeded", "forced")),
        (_reset_forward, ("skipped", "fresh")),
    ],
)
def test_t01_result_that_a_reset_removed_is_held_until_changed_forced_or_reset_forward(
    made_catalog_url: str,
    tmp_path: Path,
    end: Callable[[Store, str], BuildOutcome],
    found: tuple[str, str],
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        before, after = _promoted(store)
        reset = _reset(store, "s.x", before)
        jobs = FileJobs(store=store)
        for atomic in (False, True):
            outcome = build(store, "s.x", jobs=jobs, atomic=atomic)
            [job] = outcome.jobs
            assert _found(outcome) == {"s.x": HELD}
            assert job.to_json()["held"] == {
                "dataset": "s.x",
                "branch": "master",
                "publication": reset.publication,
                "actor": "ana",
                "at": instant_text(reset.at),
            }
        assert (jobs.ran, _view(store, "s.x")) == ([], before)
        # Feature is not reset.
        assert _found(build(store, "s.x", **FEATURE)) == {"s.x": ("skipped", "fresh")}

        assert _found(end(store, after)) == {"s.x": found}
        assert _found(build(store, "s.x")) == {"s.x": ("skipped", "fresh")}
        assert_store_sound(store)


def test_t01_changed_parameters_end_the_hold(made_catalog_url: str, tmp_path: Path) -> None:
    number = (ParameterSpec(name="n", kind="integer", default=1),)
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x", parameters=number))
        build(store, "s.x")
        before = _view(store, "s.x")
        assert _found(build(store, "s.x", parameters={"n": 2})) == {
            "s.x": ("succeeded", "stale-parameters")
        }
        _reset(store, "s.x", before)
        assert _found(build(store, "s.x", parameters={"n": 2})) == {"s.x": HELD}
        assert _view(store, "s.x") == before
        for found in (("succeeded", "stale-parameters"), ("skipped", "fresh")):
            assert _found(build(store, "s.x", parameters={"n": 3})) == {"s.x": found}
        assert_store_sound(store)


def test_t01_dependants_of_a_held_job_read_the_view(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x"), files_spec("s.y", "s.x"))
        build(store, "s.y")
        before, first = _view(store, "s.x"), shown(store, "s.x", "s.y")
        publish(store, "master", files_spec("s.x", logic="2"), files_spec("s.y", "s.x"))
        build(store, "s.y")
        _reset(store, "s.x", before)

        # The key of the first result of `s.y` was never removed, so that is adopted.
        assert _found(build(store, "s.y")) == {"s.x": HELD, "s.y": ("adopted", "adopted")}
        assert shown(store, "s.x", "s.y") == first
        changed = files_spec("s.y", "s.x", logic="2")
        publish(store, "master", files_spec("s.x", logic="2"), changed)
        assert _found(build(store, "s.y")) == {"s.x": HELD, "s.y": ("succeeded", "stale-logic")}
        assert_store_sound(store)


def test_t01_job_with_several_outputs_is_held_if_one_was_reset(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x,s.y"))
        build(store, "s.x")
        before = _view(store, "s.x")
        publish(store, "master", files_spec("s.x,s.y", logic="2"))
        build(store, "s.x")
        after = _view(store, "s.y")
        _reset(store, "s.x", before)
        assert list(_found(build(store, "s.y")).values()) == [HELD]
        assert (_view(store, "s.x"), _view(store, "s.y")) == (before, after)


def test_t01_reset_over_several_increments_holds_their_sum(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.out", "s.in", incremental=IncrementalSpec()))
        given, jobs, views = files_branch(store, "s.in"), CopyJobs(store=store), []
        for path in ("a", "b", "c"):
            put(given, **{path: "1"})
            build(store, "s.out", jobs=jobs)
            views.append(_view(store, "s.out"))
        _reset(store, "s.out", views[0])
        # From this base nothing was ever built; the result would be that which the reset removed.
        assert _found(build(store, "s.out", jobs=jobs)) == {"s.out": HELD}
        put(given, d="1")
        assert states(build(store, "s.out", jobs=jobs)) == {"s.out": "succeeded"}
        assert jobs.copied[-1].paths == ("b", "c", "d")


def test_t01_fallback_that_was_reset_holds_for_a_branch_without_its_own_version(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        before, _ = _promoted(store)
        reset = _reset(store, "s.x", before)
        [job] = build(store, "s.x", branch="other", fallback=["master"]).jobs
        assert (job.state.value, job.to_json()["held"]["publication"]) == (
            "skipped",
            reset.publication,
        )
        assert "other" not in branches_by_name(store, "s.x")
        other: dict[str, Any] = {"branch": "other", "fallback": ["master"]}
        assert states(build(store, "s.x", **other, force=True)) == {"s.x": "succeeded"}
        assert _found(build(store, "s.x", **other)) == {"s.x": ("skipped", "fresh")}
        assert _found(build(store, "s.x")) == {"s.x": HELD}


def test_t01_two_resets_hold_both_and_forward_ends_what_it_shows_again(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        views: list[str] = []

        def use(logic: str) -> tuple[str, str]:
            publish(store, "master", files_spec("s.x", logic=logic))
            return _found(build(store, "s.x"))["s.x"]

        for logic in ("1", "2", "3"):
            use(logic)
            views.append(_view(store, "s.x"))
        _reset(store, "s.x", views[1])
        _reset(store, "s.x", views[0])
        assert (use("2"), use("3"), use("1")) == (HELD, HELD, ("skipped", "fresh"))
        _reset(store, "s.x", views[1])
        assert (use("3"), use("2")) == (HELD, ("skipped", "fresh"))
        # All at once: what is removed is held, also from beside the way back.
        use("4")
        _reset(store, "s.x", views[2])
        assert (use("4"), use("3")) == (HELD, ("skipped", "fresh"))


def test_t01_forced_result_is_no_longer_held(made_catalog_url: str, tmp_path: Path) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        before, _ = _promoted(store)
        _reset(store, "s.x", before)
        build(store, "s.x", force=True)
        put(store.dataset("s.x").branch("master"), made="by hand")
        assert _found(build(store, "s.x")) == {"s.x": ("adopted", "adopted")}


def test_t01_result_that_a_merge_brought_is_held_until_it_is_merged_again(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x"))
        build(store, "s.x")
        before = _view(store, "s.x")
        publish(store, "feature", files_spec("s.x", logic="2"))
        build(store, "s.x", **FEATURE)
        publish(store, "master", files_spec("s.x", logic="2"))
        store.merge("feature", into="master")
        _reset(store, "s.x", before)
        assert _found(build(store, "s.x")) == {"s.x": HELD}
        store.merge("feature", into="master")
        assert _found(build(store, "s.x")) == {"s.x": ("adopted", "adopted")}


def test_t01_new_branch_of_the_same_name_holds_nothing(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _promoted(store)
        dataset = store.dataset("s.x")
        first = dataset.branch("master").history()[-1].id
        dataset.branch("work").create("master").reset(to=first)
        work: dict[str, Any] = {"branch": "work", "fallback": ["master"]}
        assert _found(build(store, "s.x", **work)) == {"s.x": HELD}
        dataset.branch("work").delete()
        dataset.branch("work").create("master", at=first)
        assert _found(build(store, "s.x", **work)) == {"s.x": ("adopted", "adopted")}


def test_t01_deleted_branch_holds_for_as_long_as_it_can_be_restored(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        first, _ = _promoted(store)
        work = store.dataset("s.x").branch("work").create("master")
        for branch in ("master", "work"):
            _reset(store, "s.x", first, branch)
        put(work, own="1")
        work.delete()
        let_days_pass(store, 27)
        tidy_twice(store)
        assert _holds(store) == 2
        work.restore()
        let_days_pass(store, 60)
        tidy_twice(store)
        assert _holds(store) == 2
        work.delete()
        let_days_pass(store, 40)
        tidy_twice(store)
        assert _holds(store) == 1
        assert _found(build(store, "s.x")) == {"s.x": HELD}


def test_t01_result_below_a_transaction_with_its_content_is_held(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        before, _ = _promoted(store)
        here = store.dataset("s.x").branch("master")
        with here.transaction("UPDATE") as same:
            same.write("made", b"s.x2()")
        assert _found(build(store, "s.x")) == {"s.x": ("skipped", "fresh")}
        _reset(store, "s.x", before)
        assert _found(build(store, "s.x")) == {"s.x": HELD}


def test_t01_plan_made_before_the_reset_is_made_again(
    made_catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        before, _ = _promoted(store)
        put(store.dataset("s.x").branch("master"), made="by hand")
        resets: list[Receipt] = []

        def reset_and_open(database: Database, request: OpeningRequest) -> OpenedBuild:
            if not resets:
                assert request.plan.decisions[0].candidate is not None
                resets.append(_reset(store, "s.x", before))
            return open_build(database, request)

        monkeypatch.setattr(run, "open_build", reset_and_open)
        assert _found(build(store, "s.x")) == {"s.x": HELD}
        assert (len(resets), _view(store, "s.x")) == (1, before)


def test_t01_key_that_is_known_only_after_an_upstream_job_ran_is_held(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(
            store, "master", files_spec("s.x"), files_spec("s.y", "s.x"), files_spec("s.z", "s.y")
        )
        build(store, "s.z")
        before = _view(store, "s.y")
        changed = (files_spec("s.y", "s.x", logic="2"), files_spec("s.z", "s.y"))
        publish(store, "master", files_spec("s.x"), *changed)
        build(store, "s.z")
        _reset(store, "s.y", before)

        put(store.dataset("s.x").branch("master"), made="by hand")
        jobs = FileJobs(store=store)
        # `s.x` runs again, and its content is the same as before.
        outcome = build(store, "s.z", jobs=jobs, adopt="off")
        assert jobs.ran == ["s.x", "s.z"]
        assert _found(outcome)["s.y"] == HELD
        assert _view(store, "s.y") == before
        assert shown(store, "s.z") == {"s.z": "s.z1(s.y1(s.x1()))"}
        record = store.build_record(outcome.id)
        assert [job["state"] for job in record["jobs"]] == ["succeeded", "skipped", "succeeded"]
        assert_store_sound(store)


@pytest.mark.parametrize(("fresh", "found"), [("never", "never-fresh"), (0.0, "stale-logic")])
def test_t01_result_that_is_not_fresh_for_good_is_not_held_for_good(
    made_catalog_url: str, tmp_path: Path, fresh: str | float, found: str
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        publish(store, "master", files_spec("s.x", fresh=fresh))
        build(store, "s.x")
        before = _view(store, "s.x")
        publish(store, "master", files_spec("s.x", logic="2", fresh=fresh))
        build(store, "s.x")
        _reset(store, "s.x", before)
        assert _found(build(store, "s.x")) == {"s.x": ("succeeded", found)}


def test_t01_pages_of_the_build_the_lineage_and_the_branch_name_the_hold(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        before, _ = _promoted(store)
        reset = _reset(store, "s.x", before)
        outcome = build(store, "*")
        sentence = f"reset {reset.publication} by ana at "
        grant = Grant(actor="ana", role=Role.ADMIN)

        def drawn(make: Callable[[Visit], Page], subject: str = "", **query: str) -> str:
            visit = Visit(store=store, grant=grant, subject=subject, query=query)
            return "".join(make(visit).sections.values())

        shown = drawn(build_page, outcome.id, job="0")
        assert shown.count(sentence) == 2
        # A pattern is not a dataset: it has no page to link to.
        assert ">*</a>" not in shown
        lineage = drawn(lineage_page, branch="master")
        assert 'class="node held"' in lineage
        assert "s.x on master: held" in lineage
        assert "1 held" in drawn(branches_page, branch="master")


def _act(store: Store, chance: random.Random) -> None:
    """Do what changes the holds of `s.x`: build, force, reset, merge, or write by hand."""
    branch = chance.choice(["master", "master", "feature"])
    options: dict[str, Any] = FEATURE if branch == "feature" else {}
    here = store.dataset("s.x").branch(branch)
    match chance.choice(["build", "build", "reset", "reset", "merge", "write"]):
        case "build":
            publish(store, branch, files_spec("s.x", logic=chance.choice("123")))
            build(store, "s.x", **options, force=chance.random() < 0.2)
        case "reset":
            past = here.history() + store.dataset("s.x").branch("master").history()
            here.reset(to=chance.choice(past).id)
        case "merge":
            store.merge("feature", into="master")
        case "write":
            put(here, made=chance.choice("ab"))


@pytest.mark.parametrize("seed", range(3))
def test_t01_migration_holds_what_resets_of_an_earlier_release_removed(
    made_catalog_url: str, tmp_path: Path, seed: int
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _promoted(store)
        chance, seen = random.Random(seed), set[int]()
        for _ in range(12):
            for _ in range(3):
                with suppress(HeadgateError):
                    _act(store, chance)
            kept = _all_holds(store)
            seen.add(len(kept))
            # An earlier release recorded everything else of a reset.
            store.database.write(lambda c: c.execute(delete(holds)))
            store.database.write(lambda c: c.execute(_OLDER))
            with closing_database(made_catalog_url) as opened:
                assert migrate(opened)[0] == _BEFORE
            assert _all_holds(store) == kept
        assert len(seen) > 2, "too few resets"


_BEFORE = 10
_OLDER = update(facts).where(facts.c.key == "schema_version").values(value=str(_BEFORE))


def _all_holds(store: Store) -> list[tuple[Any, ...]]:
    query = select(*holds.c).order_by(*holds.c)
    return store.database.read(lambda c: [tuple(row) for row in c.execute(query)])


_PIPELINE = """\
from headgate.transforms import Input, Output, transform_df

@transform_df(Output("shop.out"), orders=Input("shop.orders"))
def out(orders):
    return orders.selectExpr("id + {more} as id")
"""


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_t01_table_that_spark_made_is_held(sqlite_url: str, tmp_path: Path, jvm: SharedJvm) -> None:
    project = new_project(sqlite_url, tmp_path, jvm)
    with project.store as store:
        create_tables(store, "master", orders=[{"id": 1}], out=[{"id": 0}])
        before = _view(store, "shop.out")
        project.publish(pipeline=_PIPELINE.format(more=0))
        project.work.git("checkout", "--quiet", "-b", "feature")
        project.publish(pipeline=_PIPELINE.format(more=1))
        project.build("shop.out", **FEATURE)
        project.merge("feature")
        assert states(project.build("shop.out")) == {"shop.out": "adopted"}
        _reset(store, "shop.out", before)
        assert _found(project.build("shop.out")) == {"shop.out": HELD}
        assert read_table(store, "master", "shop.out") == [{"id": 0}]
        assert states(project.build("shop.out", force=True)) == {"shop.out": "succeeded"}
        assert read_table(store, "master", "shop.out") == [{"id": 2}]
