"""Query 1: billed, shipped and returned amounts."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, StringParam, transform_df


@transform_df(
    Output("report.pricing"),
    lineitem=Input("tpch.lineitem"),
    shipped_until=StringParam("1998-09-02"),
)
def pricing(lineitem, shipped_until):
    discounted = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return (
        lineitem.where(F.col("l_shipdate") <= F.lit(shipped_until.value).cast("date"))
        .groupBy("l_returnflag", "l_linestatus")
        .agg(
            F.sum("l_quantity").alias("quantity"),
            F.sum("l_extendedprice").alias("base_price"),
            F.sum(discounted).alias("discounted_price"),
            F.count("*").alias("orders"),
        )
    )
