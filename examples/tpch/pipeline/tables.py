"""Tables of TPC-H, from the Parquet files of its generator."""

from headgate.transforms import Check, Input, Output, transform
from headgate.transforms import expectations as E


def _keyed(dataset, *key):
    """Return an output with these columns as primary key: duplicates stop the publication."""
    name = f"{dataset} has a key"
    return Output(dataset, checks=Check(E.primary_key(*key), name, on_error="FAIL"))


@transform(
    files=Input("raw.tpch"),
    region=_keyed("tpch.region", "r_regionkey"),
    nation=_keyed("tpch.nation", "n_nationkey"),
    supplier=_keyed("tpch.supplier", "s_suppkey"),
    customer=_keyed("tpch.customer", "c_custkey"),
    orders=_keyed("tpch.orders", "o_orderkey"),
    lineitem=_keyed("tpch.lineitem", "l_orderkey", "l_linenumber"),
)
def tables(ctx, files, **outputs):
    """Produce six tables in one job, which publishes all of them at once."""
    home = files.filesystem().hadoop_path
    for name, output in outputs.items():
        output.write_dataframe(ctx.spark_session.read.parquet(f"{home}/{name}.parquet"))
