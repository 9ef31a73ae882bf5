"""`headgate token`: bearer tokens for the server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate import store
from headgate.catalog.tokens import TokenRecord, create_token, list_tokens, revoke_token
from headgate.cli.output import JsonOption, note, show_json, show_table
from headgate.model.access import Role
from headgate.model.instants import instant_text
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
    patterns = tuple(part.strip() for part in branches.split(",") if part.strip()) or ("*",)
    lifetime = None if expires == "never" else parse_duration_seconds(expires, what="--expires")
    with store.open() as hg:
        secret, record = create_token(
            hg.database,
            actor=actor,
            role=role,
            branches=patterns,
            lifetime_seconds=lifetime,
            created_by=hg.settings.actor,
        )
    if json:
        show_json({"token": secret, **_to_json(record)})
        return
    note(f"token {record.id} for {actor}, a {role}; it is shown only now:")
    typer.echo(secret)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """Tokens and what they stand for; never the tokens themselves.

    Example: headgate token list
    """
    with store.open() as hg:
        found = hg.database.read(list_tokens)
    if json:
        show_json([_to_json(record) for record in found])
        return
    show_table(
        ("ID", "ACTOR", "ROLE", "BRANCHES", "EXPIRES", "REVOKED"),
        (
            (
                record.id,
                record.grant.actor,
                record.grant.role,
                ", ".join(record.grant.branches),
                instant_text(record.expires_at) if record.expires_at else "never",
                instant_text(record.revoked_at) if record.revoked_at else "",
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
    with store.open() as hg:
        record = revoke_token(hg.database, token)
    if json:
        show_json(_to_json(record))
    else:
        note(f"token {record.id} of {record.grant.actor} is revoked.")


def _to_json(record: TokenRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "actor": record.grant.actor,
        "role": record.grant.role,
        "branches": list(record.grant.branches),
        "created_by": record.created_by,
        "created_at": instant_text(record.created_at),
        "expires_at": instant_text(record.expires_at) if record.expires_at else None,
        "revoked_at": instant_text(record.revoked_at) if record.revoked_at else None,
    }
