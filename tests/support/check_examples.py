"""Orders with the usual flaws, and expectations that pass and fail on them."""

from __future__ import annotations

import datetime
from decimal import Decimal

from headgate.transforms import expectations as E  # noqa: N812  (as users write it)

# One order has no values but its id, one has no tags, and two have the same id.
SIX_ORDERS = """
select id, customer, cast(amount as decimal(10, 2)) as amount, tags, day,
       to_timestamp(at) as at, cast(at as timestamp_ntz) as wall,
       named_struct('City', customer) as place, 9223372036854775807L as big,
       map('n', id) as extra
from values
  (1, 'ann', 10.5, array('x', 'y'), date'2026-01-01', '2026-01-01T10:00:00'),
  (2, 'bob', 20.0, array('x'), date'2026-01-02', '2026-01-02T10:00:00'),
  (3, 'bob', -5.0, array(), date'2026-01-03', '2026-01-03T10:00:00'),
  (4, null, null, null, null, null),
  (5, 'eve', 7.25, array('x'), date'2026-01-05', '2026-01-05T10:00:00'),
  (5, 'eve', 7.25, array('x'), date'2026-01-05', '2026-01-05T10:00:00')
  as orders(id, customer, amount, tags, day, at)
"""

NOON = datetime.datetime(2026, 1, 2, 12)
FAR_WEST = datetime.timezone(-datetime.timedelta(hours=12))

PASSING = [
    E.col("amount").gt(-6),
    E.col("amount").lte(Decimal("20.00")),
    E.negate(E.col("amount").gt(100)),
    E.col("amount").lt(2**70),
    E.col("id").is_in(1, 2, 3, 4, 5),
    E.col("customer").is_in("ann", "bob", "eve", None),
    E.negate(E.col("customer").is_in("zoe")),
    E.col("customer").rlike("^[abe]"),
    E.col("customer").equals_col("place.city"),
    E.col("day").gte("2026-01-01"),
    E.col("day").lt(datetime.date(2026, 1, 6)),
    E.col("day").lt(NOON + datetime.timedelta(days=9)),
    E.col("at").lte("2026-01-05T10:00:00"),
    E.col("at").lt(datetime.datetime(2026, 1, 4, 22, 0, 1, tzinfo=FAR_WEST)),
    E.col("wall").lte(datetime.datetime(2026, 1, 5, 10)),
    E.col("at").lt(E.now()),
    E.col("day").lt(E.now(datetime.timedelta(days=1))),
    E.col("tags").array_size(at_most=2),
    E.any(E.col("amount").gt(0), E.col("id").equals(3), E.col("id").equals(4)),
    E.count().equals(6),
    E.col("amount").sum().equals(Decimal("40.00")),
    E.col("amount").null_count().equals(1),
    E.col("customer").null_percentage().lt(0.17),
    E.col("customer").distinct_count().equals(3),
    E.col("customer").approx_distinct_count().is_in(3, 4),
    E.approx_distinct_count("customer", "day").equals(5),
    E.col("amount").standard_deviation_population().lt(8.2),
    E.col("amount").standard_deviation_sample().gt(8.5),
    E.group_by("customer").count().lte(2),
    E.group_by("customer").col("amount").sum().gt(5),
    E.group_by("customer").col("amount").gt(-6),
    E.negate(E.primary_key("id")),
    E.schema().contains({"id": "int", "amount": "decimal(10,2)", "tags": "array<string>"}),
]


FAILING = [
    (E.col("amount").gt(0), "1 of 6 rows has amount <= 0"),
    (E.col("amount").lt(Decimal("20.00")), "1 of 6 rows has amount >= 20.00"),
    (E.negate(E.col("amount").gt(10)), "2 of 6 rows break negate(amount gt 10)"),
    (E.col("customer").is_in("ann", "bob", "eve"), "1 of 6 rows has customer not in"),
    (E.col("id").is_in(), "6 of 6 rows have id not in ()"),
    (E.col("customer").non_null(), "1 of 6 rows has customer null"),
    (E.col("customer").rlike("^[ab]"), "2 of 6 rows have customer not matching '^[ab]'"),
    (E.col("at").lt(datetime.datetime(2026, 1, 4, 22, tzinfo=FAR_WEST)), "2 of 6 rows have at >="),
    (E.col("wall").lt(NOON), "3 of 6 rows have wall >= 2026-01-02T12:00:00"),
    (E.col("at").gt(E.now(-datetime.timedelta(days=1))), "5 of 6 rows have at <= now - 86400 s"),
    (E.col("tags").array_contains("x"), "1 of 6 rows has tags without 'x'"),
    (E.col("tags").array_size(1), "1 of 6 rows has tags of a size not at least 1"),
    (E.col("place.CITY").equals("bob"), "3 of 6 rows have place.CITY != 'bob'"),
    (E.primary_key("id"), "1 of 5 values of id is in more than one row (6 rows in all)"),
    (E.primary_key("customer"), "1 of 6 rows has null in customer"),
    (E.group_by("customer", "day").is_unique(), "1 of 5 values of customer, day is"),
    (E.group_by("customer").count().lt(2), "2 of 4 groups by customer have count(*) >= 2"),
    (E.group_by("extra").is_unique(), "1 of 5 values of extra"),
    (E.count().gt(6), "count(*) is 6, expected > 6"),
    (E.col("nope").gt(0), "there is no column 'nope'; the columns are id, customer, amount"),
    (E.col("customer").gt(0), "customer is string, which cannot be compared with 0"),
]
