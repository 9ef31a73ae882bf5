"""The transform that the session publishes and plans."""

from __future__ import annotations

from typing import Any

from headgate.transforms import (
    Check,
    Input,
    IntegerParam,
    Output,
    configure,
    expectations,
    transform_df,
)


@configure(fresh=3600, profile=["LARGE"], spark_conf={"spark.sql.shuffle.partitions": 4})
@transform_df(
    Output("gold.people", checks=[Check(expectations.primary_key("id"), "key", on_error="WARN")]),
    people=Input("graph.person"),
    least=IntegerParam(1),
)
def people(people: Any, least: int) -> Any:
    return people
