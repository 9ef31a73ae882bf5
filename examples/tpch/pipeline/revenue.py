"""Query 5: revenue of suppliers that sell in their own country, by country."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(
    Output("report.revenue"),
    region=Input("tpch.region"),
    nation=Input("tpch.nation"),
    supplier=Input("tpch.supplier"),
    customer=Input("tpch.customer"),
    orders=Input("tpch.orders"),
    lineitem=Input("tpch.lineitem"),
)
def revenue(region, nation, supplier, customer, orders, lineitem):
    local = F.col("c_nationkey") == F.col("s_nationkey")
    return (
        lineitem.join(orders, F.col("l_orderkey") == F.col("o_orderkey"))
        .join(customer, F.col("o_custkey") == F.col("c_custkey"))
        .join(supplier, (F.col("l_suppkey") == F.col("s_suppkey")) & local)
        .join(nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .join(region, F.col("n_regionkey") == F.col("r_regionkey"))
        .groupBy(F.col("r_name").alias("region"), F.col("n_name").alias("nation"))
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
    )
