"""Visits with the title of the page; each visit is joined once, when it arrives."""

from headgate.transforms import Check, Input, Output, incremental, transform
from headgate.transforms import expectations as E

SCHEMA = "id long, page string, title string, seconds long"


@incremental(snapshot_inputs=["pages"])
@transform(
    visits=Input("raw.visits"),
    pages=Input("raw.pages"),
    named=Output(
        "web.visits",
        checks=Check(E.primary_key("id"), "each visit once", on_error="FAIL"),
    ),
)
def name_visits(visits, pages, named):
    """Read the added visits and all pages; append to the existing result."""
    # A sender may repeat a visit after a lost reply: rows that exist already are left out.
    new = visits.dataframe().dropDuplicates(["id"])
    held = named.dataframe("previous", schema=SCHEMA).select("id")
    named.write_dataframe(
        new.join(held, "id", "left_anti")
        .join(pages.dataframe(), "page", "left")
        .select("id", "page", "title", "seconds")
    )
