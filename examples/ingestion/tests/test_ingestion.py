"""Files become tables; invalid lines are kept apart, and a failed check publishes nothing."""

import datetime

import pytest
from pipeline.daily import daily

HEADER = "sensor,at,celsius\n"
MONDAY = HEADER + "a,2026-03-02T10:00:00,4.5\na,2026-03-02T16:00:00,11.0\nb,2026-03-02T10:00:00,5\n"
TUESDAY = (
    HEADER + "a,2026-03-03T10:00:00,warm\n,2026-03-03T10:00:00,1\nb,2026-03-03T11:00:00,7,8,9\n"
)


def test_daily_of_a_few_readings_has_the_extremes(headgate_spark):
    day = datetime.date(2026, 3, 2)
    frame = headgate_spark.createDataFrame(
        [("a", day, 4.5), ("a", day, 11.0)], "sensor string, day date, celsius double"
    )
    [row] = daily(frame).collect()
    assert (row.lowest, row.highest) == (4.5, 11.0)


def test_files_become_a_table_and_broken_lines_are_kept_apart(headgate_project):
    headgate_project.put_files("raw.readings", {"w10/mon.csv": MONDAY, "w10/tue.csv": TUESDAY})
    headgate_project.build("plant.daily", "plant.refused")
    daily = {row["sensor"]: row["highest"] for row in headgate_project.rows("plant.daily")}
    assert daily == {"a": 11.0, "b": 5.0}
    refused = sorted((row["file"], row["why"]) for row in headgate_project.rows("plant.refused"))
    assert refused == [
        ("tue.csv", "it names no sensor"),
        ("tue.csv", "its temperature is not a number"),
        ("tue.csv", "the line has too few or too many fields"),
    ]


@pytest.mark.parametrize(
    "line", ["a,2026-03-02T10:00:00,4.6", "c,2026-03-04T10:00:00,-300"], ids=["twice", "too cold"]
)
def test_what_fails_a_check_leaves_the_tables_as_they_were(headgate_project, line):
    headgate_project.put_files("raw.readings", {"mon.csv": MONDAY})
    headgate_project.build("plant.daily")
    before = headgate_project.rows("plant.daily")
    headgate_project.put_files("raw.readings", {"wed.csv": f"{HEADER}{line}\n"})
    outcome = headgate_project.build("plant.daily", check=False)
    assert [job.state.value for job in outcome.jobs] == ["failed", "aborted"]
    assert headgate_project.rows("plant.daily") == before
