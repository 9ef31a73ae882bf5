"""`headgate token`: bearer tokens for the server."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import JsonOption, note, show_json, show_table
from headgate.model.access import Role
from headgate.settings import parse_duration_seconds

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke bearer tokens.")


@app.command()
def create(
    actor: Annotated[str, typer.Option("--actor", help="Who the token stands for.")],
    role: Annotated[Role, typer.Option("--role", help="What it may do.")],
    branches: Annotated[
        str, typer.Option("--branches", help="Branches it may write: `feature/*,ana/*`.")
    ] = "*",
    expires: Annotated[str, typer.Option("--expires", help="30d, 24h or `never`.")] = "30d",
    json: JsonOption = False,
) -> None:
    """Make a token; it is shown once and stored nowhere.

    Example: headgate token create --actor ana --role writer --branches "ana/*" --expires 30d
    """
    lifetime = None if expires == "never" else parse_duration_seconds(expires, what="--expires")
    with opening.open() as hg:
        made = hg.create_token(actor=actor, role=role, branches=branches, lifetime_seconds=lifetime)
    if json:
        show_json(made)
        return
    note(f"token {made['id']} for {actor}, a {role}; it is shown only now:")
    typer.echo(made["token"])


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """Tokens and what they stand for; never the tokens themselves.

    Example: headgate token list
    """
    with opening.open() as hg:
        found = hg.tokens()
    if json:
        show_json(found)
        return
    show_table(
        ("ID", "ACTOR", "ROLE", "BRANCHES", "EXPIRES", "REVOKED"),
        (
            (
                record["id"],
                record["actor"],
                record["role"],
                ", ".join(record["branches"]),
                record["expires_at"] or "never",
                record["revoked_at"] or "",
            )
            for record in found
        ),
        empty="no token yet; `headgate token create` makes one.",
    )


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `token list` shows it.")],
    json: JsonOption = False,
) -> None:
    """Refuse a token from now on.

    Example: headgate token revoke tok-01m7f8gggmxzttp51zc67s
    """
    with opening.open() as hg:
        record = hg.revoke_token(token)
    if json:
        show_json(record)
    else:
        note(f"token {record['id']} of {record['actor']} is revoked.")
