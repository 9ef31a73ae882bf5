"""`headgate jobspecs`: publish transforms from Git; list and show JobSpecs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate import connection
from headgate.cli import output
from headgate.errors import JobSpecNotFound
from headgate.store.documents import jobspec_json

app = typer.Typer(no_args_is_help=True, help="Publish transforms from Git; list and show JobSpecs.")


@app.command()
def publish(
    repo: Annotated[Path, typer.Option("--repo", help="Directory in the Git repository.")] = Path(),
    branch: output.BranchOption = None,
    allow_dirty: Annotated[
        bool,
        typer.Option("--allow-dirty", help="Publish uncommitted changes, marked as not clean."),
    ] = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Publish the transforms of the checked-out commit, on the name of the Git branch.

    In a repository with several projects, the project is the nearest directory with a
    headgate.toml or a pyproject.toml.

    Example: headgate jobspecs publish
    """
    with connection.open(actor=actor) as hg:
        found = hg.publish_jobspecs(repo, branch=branch, allow_dirty=allow_dirty)
    if json:
        output.show_json(
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
    output.note(
        f"published {len(found.published)} JobSpecs of {found.source.commit[:10]} on "
        f"{found.source.branch}" + ("" if found.source.clean else " (not clean)")
    )
    for name in found.removed:
        output.note(f"  {name} is marked as removed")
    for s in found.suspicions:
        output.note(f"  warning {s.file}:{s.line}: {s.what}")
    for file in found.unreachable:
        output.note(f"  warning {file}: skipped, because no import can reach it")


@app.command("list")
def list_(branch: output.BranchOption = None, json: output.JsonOption = False) -> None:
    """List published JobSpecs by branch.

    Example: headgate jobspecs list -b feature
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch)
    if json:
        output.show_json(found)
        return
    output.show_table(
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
        empty="no JobSpecs; publish them with `headgate jobspecs publish`.",
    )


@app.command()
def show(dataset: str, branch: output.BranchOption = None, json: output.JsonOption = False) -> None:
    """Show the JobSpecs that make a dataset, on every branch name.

    Example: headgate jobspecs show sales.daily
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch, dataset=dataset)
    if not found:
        raise JobSpecNotFound(dataset=dataset, chain=[branch or "(any)"], removed_on=None)
    if json:
        output.show_json(found)
        return
    for spec in found:
        output.note(f"{spec['branch']}: " + ("removed" if spec["removed"] else spec["entry"]))
        if not spec["removed"]:
            output.note(f"  reads   {', '.join(spec['inputs']) or 'nothing'}")
            output.note(f"  writes  {', '.join(spec['outputs'])}")
            output.note(f"  logic   {spec['logic_hash'][:16]}, commit {spec['commit'][:10]}")
