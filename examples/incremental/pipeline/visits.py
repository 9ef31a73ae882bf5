"""Visits with the title of the page; each visit is looked up once, when it comes."""

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
    """Reads the visits that were added, and all pages; adds to what is there."""
    # A sender that is not sure sends again: what is known already is left out.
    new = visits.dataframe().dropDuplicates(["id"])
    held = named.dataframe("previous", schema=SCHEMA).select("id")
    named.write_dataframe(
        new.join(held, "id", "left_anti")
        .join(pages.dataframe(), "page", "left")
        .select("id", "page", "title", "seconds")
    )
