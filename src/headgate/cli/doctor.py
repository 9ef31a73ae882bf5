"""`headgate doctor`: look at a store from end to end, and say what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import JsonOption, note, show_json, show_line
from headgate.errors import Invalid
from headgate.handles.nouns import Json
from headgate.settings import load_settings
from headgate.upkeep.doctor import examine
from headgate.upkeep.examined import Examined, from_error, make_check

app = typer.Typer()


@app.command()
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Every row and every byte, which may take long.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check a store: catalog, log, branches, histories, stored objects; nothing is changed.

    Ends with 1 if anything is wrong. Each finding says what to do.

    Example: headgate doctor --deep
    """
    examined = _examine(deep=deep)
    if json:
        show_json(examined)
    else:
        _show(examined)
    if not examined["ok"]:
        raise typer.Exit(1)


def _examine(*, deep: bool) -> Json:
    try:
        settings = load_settings()
    except Invalid as error:
        bad = make_check("settings", [from_error(error, where="settings")])
        return Examined(checks=[bad]).to_json()
    if settings.server_url:
        with opening.open() as hg:
            return hg.examine(deep=deep)
    # Without opening it: what is wrong may be that it cannot be opened.
    return examine(settings, deep=deep).to_json()


def _show(examined: Json) -> None:
    for check in examined["checks"]:
        show_line(f"{'ok  ' if check['ok'] else 'BAD '} {check['check']}")
        for line in details(check):
            show_line(f"       {line}")
    bad = sum(len(check["findings"]) for check in examined["checks"])
    note("nothing is wrong." if examined["ok"] else f"findings: {bad}")


def details(check: Json) -> list[str]:
    """Each finding with where it is and what to do about it, then what is good to know."""
    told = [
        line
        for finding in check["findings"]
        for line in (f"{finding['where']}: {finding['what']}", f"  → {finding['remedy']}")
    ]
    return [*told, *(f"({remark})" for remark in check["notes"])]
