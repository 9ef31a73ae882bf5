"""`headgate migrate`: bring the catalog's schema to this release."""

from __future__ import annotations

import typer

from headgate.catalog import migrate as migrations
from headgate.catalog.database import Database
from headgate.cli.output import JsonOption, note, show_json
from headgate.settings import load_settings

app = typer.Typer()


@app.command()
def migrate(json: JsonOption = False) -> None:
    """Bring the catalog's schema to this release; make a backup of PostgreSQL first.

    A SQLite catalog is copied beside itself first, and also migrates when it is opened.

    Example: headgate migrate
    """
    database = Database(load_settings().catalog)
    try:
        before, after = migrations.migrate(database)
    finally:
        database.close()
    if json:
        show_json({"catalog": database.where, "from": before, "to": after})
    elif before == after:
        note(f"the catalog has schema version {after} already.")
    else:
        note(f"the catalog went from schema version {before} to {after}.")
