"""Time spent by page, kept up to date from its own last result and the new visits alone."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, incremental, transform

SCHEMA = "page string, visits long, seconds long"


@incremental()
@transform(visits=Input("web.visits"), totals=Output("web.totals"))
def add_up(visits, totals):
    """A few rows of totals are written anew; the many visits behind them are not read again."""
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
