"""Convert lines of CSV files to typed rows; keep rejected lines apart, with the reason."""

from pyspark.sql import functions as F

from headgate.transforms import Check, Input, Output, transform
from headgate.transforms import expectations as E

_SCHEMA = "sensor string, at string, celsius string, broken string"


@transform(
    files=Input("raw.readings"),
    readings=Output(
        "plant.readings",
        checks=[
            Check(E.primary_key("sensor", "at"), "one reading per moment", on_error="FAIL"),
            Check(E.col("celsius").gte(-60), "not colder than can be", on_error="FAIL"),
            Check(E.col("celsius").lt(60), "not hotter than usual", on_error="WARN"),
        ],
        partition_cols=["day"],
    ),
    refused=Output("plant.refused"),
)
def readings(ctx, files, readings, refused):
    """Publish both tables together, so that each line is in exactly one of them."""
    paths = [file.path for file in files.filesystem().ls(glob="**/*.csv")]
    home = files.filesystem().hadoop_path
    lines = (
        ctx.spark_session.read.schema(_SCHEMA)
        .options(header=True, columnNameOfCorruptRecord="broken", mode="PERMISSIVE")
        .csv([f"{home}/{path}" for path in paths])
        .withColumn("file", F.element_at(F.split(F.input_file_name(), "/"), -1))
        .withColumn("moment", F.try_to_timestamp("at"))
        .withColumn("number", F.expr("try_cast(celsius as double)"))
        .withColumn("why", _why())
    )
    good = F.col("why").isNull()
    readings.write_dataframe(
        lines.where(good).select(
            "sensor",
            F.col("moment").alias("at"),
            F.col("number").alias("celsius"),
            F.to_date("moment").alias("day"),
        )
    )
    refused.write_dataframe(lines.where(~good).select("file", "sensor", "at", "celsius", "why"))


def _why():
    """Return the first error of a line; null if it has none."""
    return (
        F.when(F.col("broken").isNotNull(), "the line has too few or too many fields")
        .when(F.col("sensor").isNull(), "it names no sensor")
        .when(F.col("moment").isNull(), "its time cannot be read")
        .when(F.col("number").isNull(), "its temperature is not a number")
    )
