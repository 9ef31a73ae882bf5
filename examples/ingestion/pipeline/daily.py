"""The lowest and the highest temperature of each sensor and day."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("plant.daily"), readings=Input("plant.readings"))
def daily(readings):
    return readings.groupBy("sensor", "day").agg(
        F.min("celsius").alias("lowest"), F.max("celsius").alias("highest")
    )
