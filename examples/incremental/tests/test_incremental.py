"""Incremental builds read only added rows, and give the same result as a full build."""

import pytest
from pipeline.totals import SCHEMA as TOTALS
from pipeline.totals import add_up

VISITS = "id long, page string, seconds long"
PAGES = [("/", "Home"), ("/shop", "Shop")]


@pytest.fixture
def project(headgate_project):
    """A project with two visits, built once: a full build, since no earlier result exists."""
    headgate_project.put_table("raw.pages", PAGES, "page string, title string")
    headgate_project.put_table("raw.visits", [(1, "/", 10), (2, "/shop", 20)], VISITS)
    headgate_project.build("web.totals")
    return headgate_project


def totals(project):
    return {row["page"]: (row["visits"], row["seconds"]) for row in project.rows("web.totals")}


def extents(outcome):
    """Return the extent of each job: incremental or full."""
    return [job.to_json()["incremental"]["extent"] for job in outcome.jobs]


def test_totals_of_new_visits_are_added_to_the_last_ones(headgate_spark):
    added = headgate_spark.createDataFrame(
        [(3, "/", "Home", 5)], "id long, page string, title string, seconds long"
    )
    held = headgate_spark.createDataFrame([("/", 1, 10)], TOTALS)
    [row] = add_up(visits={"added": added}, totals=held)["totals"].collect()
    assert (row.page, row.visits, row.seconds) == ("/", 2, 15)


def test_visits_that_were_added_are_the_only_ones_read(project):
    project.put_table("raw.visits", [(2, "/shop", 20), (3, "/", 5)], VISITS, append=True)
    outcome = project.build("web.totals")
    assert extents(outcome) == ["incremental", "incremental"]
    assert totals(project) == {"/": (2, 15), "/shop": (1, 20)}
    assert [job.rows for job in outcome.jobs] == [1, 2]


def test_visits_that_were_replaced_are_all_read_again(project):
    project.put_table("raw.visits", [(9, "/", 1)], VISITS)
    outcome = project.build("web.totals")
    assert extents(outcome) == ["full", "full"]
    assert totals(project) == {"/": (1, 1)}


def test_attempt_killed_after_it_wrote_leaves_each_visit_once(project, headgate_failpoints):
    project.put_table("raw.visits", [(3, "/", 5)], VISITS, append=True)
    headgate_failpoints.kill("web.visits", at="written")
    outcome = project.build("web.totals", retries=1)
    assert [job.attempts for job in outcome.jobs] == [2, 1]
    assert sorted(row["id"] for row in project.rows("web.visits")) == [1, 2, 3]
    assert totals(project) == {"/": (2, 15), "/shop": (1, 20)}
