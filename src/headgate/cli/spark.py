"""The commands `spark up`, `down` and `status`: a Spark that later commands share."""

import datetime
from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.errors import Invalid
from headgate.settings import parse_duration_seconds
from headgate.spark.warm import IDLE_SECONDS, describe_warm, end_warm, start_warm

app = typer.Typer(no_args_is_help=True, help="Keep a Spark warm for the commands of this store.")


@app.command()
def up(
    idle: Annotated[
        str, typer.Option("--idle", metavar="DURATION", help="End it after this time without use.")
    ] = f"{IDLE_SECONDS // 60}m",
    json: output.JsonOption = False,
) -> None:
    """Start a Spark in the background; `sql`, `build`, `load` and `optimize` use it by themselves.

    Commands use it only if their [spark] settings and their variables for Spark and storage equal
    those that it was started with; otherwise, and with --cold, they start a Spark of their own.
    Every command has its own sessions, on its own context, with its own code.

    JSON: as `spark status`.

    Example: headgate spark up --idle 2h
    """
    seconds = parse_duration_seconds(idle, what="--idle")
    if seconds < 1:
        raise Invalid("--idle is 0: give a second or more. `headgate spark down` ends it at once.")
    with connection.open(recover_first=False) as hg:
        is_new = start_warm(hg.spark_settings, hg.scratch, seconds)
        document = describe_warm(hg.spark_settings, hg.scratch)
    text = f"Spark is up; it ends after {idle} without use" if is_new else "Spark is up already"
    output.show_result(document, text, json=json)


@app.command()
def down(json: output.JsonOption = False) -> None:
    """End the warm Spark, with everything that runs in it.

    JSON: {"ended"}: false if there was none.

    Example: headgate spark down
    """
    with connection.open(recover_first=False) as hg:
        ended = end_warm(hg.scratch)
    text = "Spark is down" if ended else "no warm Spark runs"
    output.show_result({"ended": ended}, text, json=json)


@app.command()
def status(json: output.JsonOption = False) -> None:
    """Show the warm Spark of this store: whether it runs, and how many commands use it.

    JSON: {"state": running|stopped|none}; unless it is none also "reason", "pid", "since",
    "idle_seconds", "users", "same_settings", "log".

    Example: headgate spark status
    """
    with connection.open(recover_first=False) as hg:
        found = describe_warm(hg.spark_settings, hg.scratch)
    if json:
        output.show_json(found)
    elif found["state"] == "none":
        output.note("no warm Spark runs; `headgate spark up` starts one")
    else:
        since = datetime.datetime.fromtimestamp(found["since"]).astimezone()
        rows = [
            ("state", found["state"]),
            ("reason", found["reason"]),
            ("since", since.isoformat(timespec="seconds")),
            ("ends after", f"{found['idle_seconds']} s without use"),
            ("users", found["users"]),
            ("settings", "those of this command" if found["same_settings"] else "others"),
            ("log", found["log"]),
        ]
        output.show_table(("warm Spark", ""), [row for row in rows if row[1] is not None], empty="")
