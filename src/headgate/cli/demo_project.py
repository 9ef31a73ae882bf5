"""The pipeline of `headgate demo`: three datasets, A to B to C."""

from __future__ import annotations

TARGET = "shop.totals"

_SALES = '''\
"""A: what was sold. Made here; a real one would be ingested."""

from headgate.transforms import Output, transform_df


@transform_df(Output("shop.sales"))
def sales(ctx):
    regions = ("north", "south", "west")
    rows = [(n, regions[n % 3], n * 10, n % 4 == 0) for n in range(1, 301)]
    schema = "id long, region string, amount long, refund boolean"
    return ctx.spark_session.createDataFrame(rows, schema)
'''

_REGIONS = '''\
"""B: one row per sale that counts, with its region."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.regions"), sales=Input("shop.sales"))
def regions(sales):
    return sales.where(~F.col("refund")).select("region", "amount")
'''

CHANGED_REGIONS = '''\
"""B: one row per sale, with its region; a refund counts as negative."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.regions"), sales=Input("shop.sales"))
def regions(sales):
    amount = F.when(F.col("refund"), -F.col("amount")).otherwise(F.col("amount"))
    return sales.select("region", amount.alias("amount"))
'''

_TOTALS = '''\
"""C: the total of each region."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.totals"), regions=Input("shop.regions"))
def totals(regions):
    return regions.groupBy("region").agg(F.sum("amount").alias("total"))
'''

FILES = {
    "pipeline/__init__.py": "",
    "pipeline/sales.py": _SALES,
    "pipeline/regions.py": _REGIONS,
    "pipeline/totals.py": _TOTALS,
    ".gitignore": ".headgate/\nheadgate.toml\n",
}
