"""Time spent by page, updated from the last result and the new visits only."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, incremental, transform

SCHEMA = "page string, visits long, seconds long"


@incremental()
@transform(visits=Input("web.visits"), totals=Output("web.totals"))
def add_up(visits, totals):
    """Rewrite the few rows of totals, without another read of the many visits behind them."""
    new = (
        visits.dataframe()
        .groupBy("page")
        .agg(F.count("*").alias("visits"), F.sum("seconds").alias("seconds"))
    )
    both = new.unionByName(totals.dataframe("previous", schema=SCHEMA))
    totals.set_mode("replace")
    totals.write_dataframe(
        both.groupBy("page").agg(F.sum("visits").alias("visits"), F.sum("seconds").alias("seconds"))
    )
