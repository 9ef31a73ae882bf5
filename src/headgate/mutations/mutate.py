"""`mutate`: a script of SQL statements over many tables of a branch, one publication."""

from __future__ import annotations

from headgate.mutations.parts import Outcome, Parts, Request
from headgate.mutations.performing import Work, perform
from headgate.mutations.picture import Picture
from headgate.mutations.script import Action, parse_script
from headgate.mutations.statements import carry_out

_GUARDING = {Action.UPDATE, Action.DELETE, Action.MERGE}


def mutate(parts: Parts, request: Request, sql: str) -> Outcome:
    """Every statement sees those before it; readers see all of them at once, or none."""
    statements = parse_script(sql)

    def change(picture: Picture) -> None:
        picture.ground.look(name for s in statements for _, name in s.tables)
        for number, statement in enumerate(statements, start=1):
            carry_out(picture, statement, number)

    return perform(
        parts,
        request,
        Work(
            verb="mutate",
            targets=[statement.target for statement in statements],
            change=change,
            guards_rows=any(statement.action in _GUARDING for statement in statements),
            place=lambda _, n: {"line": statements[n - 1].line} if n > 0 else {},
        ),
    )
