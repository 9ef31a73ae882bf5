"""`headgate jobspecs`: publish transforms from Git; list and show JobSpecs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headgate import connection
from headgate.builds.project import find_project, install_hooks
from headgate.cli import output
from headgate.cli.format import note_report, report_json
from headgate.errors import Invalid, JobSpecNotFound
from headgate.model.names import nearest, split_names

app = typer.Typer(no_args_is_help=True, help="Publish transforms from Git; list and show JobSpecs.")

Directory = Annotated[Path, typer.Option("--repo", help="Directory in the Git repository.")]


@app.command()
def publish(
    repo: Directory = Path(),
    branch: output.BranchOption = None,
    fallback: output.FallbackOption = None,
    allow_dirty: output.AllowDirty = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="Ignore uncommitted changes.")
    ] = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Publish the transforms of the checked-out commit, on the name of the Git branch.

    A transform that the project declared where the branch left its fallback, and does not declare
    any more, is marked as removed: builds of the branch refuse it.

    In a repository with several projects, the project is the nearest directory with a
    headgate.toml or a pyproject.toml.

    Example: headgate jobspecs publish
    """
    if allow_dirty and committed:
        raise Invalid("--allow-dirty and --committed are given: give one of them.")
    with connection.open(actor=actor) as hg:
        found = hg.publish_jobspecs(
            repo,
            branch=branch,
            allow_dirty=allow_dirty,
            committed=committed,
            fallback=split_names(",".join(fallback)) if fallback else None,
        )
    if json:
        output.show_json(report_json(found))
    else:
        note_report(found)


@app.command("install-hook")
def install_hook(
    repo: Directory = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Add the line to hooks of others, too.")
    ] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove the line again.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Install Git hooks that publish the project after each commit, merge and rebase.

    The hooks publish the commit without uncommitted changes, and never fail a Git command. In a
    repository with several projects, run the command in each of them.

    Example: headgate jobspecs install-hook
    """
    project = find_project(repo)
    program = Path(sys.executable).parent
    found = install_hooks(project, program=program, force=force, remove=uninstall)
    hooks = [str(file) for file in found]
    done = f"{'removed from' if uninstall else 'installed in'} {', '.join(hooks)}"
    output.show_result({"hooks": hooks, "installed": not uninstall}, done, json=json)


@app.command("list")
def list_(branch: output.BranchOption = None, json: output.JsonOption = False) -> None:
    """List published JobSpecs by branch.

    Example: headgate jobspecs list -b feature
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch)
    columns: output.Columns = {
        "BRANCH": "branch",
        "OUTPUTS": "outputs",
        "ENTRY": lambda spec: "(removed)" if spec["removed"] else spec["entry"],
        "COMMIT": lambda spec: spec["commit"][:10] + ("" if spec["clean"] else " +changes"),
        "PUBLISHED": "published_at",
    }
    ordered = sorted(found, key=lambda s: (s["branch"], s["outputs"]))
    empty = "no JobSpecs; publish them with `headgate jobspecs publish`."
    output.show_list(ordered, columns, empty=empty, json=json, document=found)


@app.command()
def show(dataset: str, branch: output.BranchOption = None, json: output.JsonOption = False) -> None:
    """Show the JobSpecs that make a dataset, on every branch name.

    Example: headgate jobspecs show sales.daily
    """
    with connection.open() as hg:
        found = hg.jobspecs(branch=branch, dataset=dataset)
        if not found:
            outputs = {name for one in hg.jobspecs(branch=branch) for name in one["outputs"]}
            raise JobSpecNotFound(
                dataset=dataset,
                chain=[branch] if branch else [],
                removed_on=None,
                near=nearest(dataset, outputs),
            )
    if json:
        output.show_json(found)
        return
    for spec in found:
        output.note(f"{spec['branch']}: " + ("removed" if spec["removed"] else spec["entry"]))
        if not spec["removed"]:
            output.note(f"  reads   {', '.join(spec['inputs']) or 'nothing'}")
            output.note(f"  writes  {', '.join(spec['outputs'])}")
            output.note(f"  logic   {spec['logic_hash'][:16]}, commit {spec['commit'][:10]}")
