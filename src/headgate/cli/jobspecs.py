"""`headgate jobspecs`: publish transforms from Git, and see what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate import connection
from headgate.cli.output import ActorOption, BranchOption, JsonOption, say, show_json, show_table
from headgate.errors import JobSpecNotFound
from headgate.store.documents import jobspec_json

app = typer.Typer(no_args_is_help=True, help="Publish transforms from Git; list and show them.")


@app.command()
def publish(
    repo: Annotated[Path, typer.Option("--repo", help="A directory of the repository.")] = Path(),
    branch: BranchOption = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Publish uncommitted changes, marked as such.")
    ] = False,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Publish every transform of the checked-out commit on the Git branch's name.

    In a repository of several projects: those of the nearest directory with a headgate.toml or a
    pyproject.toml.

    Example: headgate jobspecs publish
    """
    with connection.open(actor=actor) as hg:
        found = hg.publish_jobspecs(repo, branch=branch, allow_dirty=allow_dirty)
    if json:
        show_json(
            {
                **found.source.to_json(),
                "published": [jobspec_json(spec) for spec in found.published],
                "removed": list(found.removed),
                "warnings": [
                    {"file": s.file, "line": s.line, "what": s.what} for s in found.suspicions
                ],
            }
        )
        return
    say(
        f"{len(found.published)} JobSpecs of {found.source.commit[:10]} are published on "
        f"[bold]{found.source.branch}[/]" + ("" if found.source.clean else " (not clean)")
    )
    for name in found.removed:
        say(f"  {name} is marked as removed there")
    for s in found.suspicions:
        say(f"  [yellow]warning[/] {s.file}:{s.line}: {s.what}")
    for file in found.unreachable:
        say(f"  [yellow]warning[/] {file}: no import can reach it, so it was not looked at")


@app.command("list")
def list_(branch: BranchOption = None, json: JsonOption = False) -> None:
    """What is published, by branch.

    Example: headgate jobspecs list -b feature
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch)
    if json:
        show_json(found)
        return
    show_table(
        ("BRANCH", "OUTPUTS", "ENTRY", "COMMIT", "PUBLISHED"),
        (
            (
                spec["branch"],
                ", ".join(spec["outputs"]),
                "(removed)" if spec["removed"] else spec["entry"],
                spec["commit"][:10] + ("" if spec["clean"] else " +changes"),
                spec["published_at"],
            )
            for spec in sorted(found, key=lambda s: (s["branch"], s["outputs"]))
        ),
        empty="nothing is published yet; `headgate jobspecs publish` does it.",
    )


@app.command()
def show(dataset: str, branch: BranchOption = None, json: JsonOption = False) -> None:
    """The JobSpecs that make a dataset, on every branch name.

    Example: headgate jobspecs show sales.daily
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch, dataset=dataset)
    if not found:
        raise JobSpecNotFound(dataset=dataset, chain=[branch or "(any)"], removed_on=None)
    if json:
        show_json(found)
        return
    for spec in found:
        say(f"[bold]{spec['branch']}[/]: " + ("removed" if spec["removed"] else spec["entry"]))
        if not spec["removed"]:
            say(f"  reads   {', '.join(spec['inputs']) or 'nothing'}")
            say(f"  writes  {', '.join(spec['outputs'])}")
            say(f"  logic   {spec['logic_hash'][:16]}, commit {spec['commit'][:10]}")
