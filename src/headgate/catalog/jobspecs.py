"""Published JobSpecs: the logic that produces each dataset, per branch name."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping, delete, insert, select, text, update

from headgate.catalog import records
from headgate.catalog.database import as_unit_of_work, note_written, now
from headgate.catalog.schema import datasets, jobspec_outputs, jobspecs
from headgate.errors import Conflict
from headgate.model.access import ReadPolicy
from headgate.model.ids import JobSpecId, mint_jobspec
from headgate.model.jobspecs import PublishedJobSpec
from headgate.model.names import parse_dataset_name

# Any fixed number: the key of the PostgreSQL advisory lock for publishing JobSpecs.
_POSTGRES_LOCK = 4_817_220_266


@as_unit_of_work
def publish_jobspecs(
    connection: Connection,
    *,
    branch: str,
    repository: str,
    commit: str,
    clean: bool,
    actor: str,
    specs: Sequence[Mapping[str, Any]],
    declared_before: Collection[str] | None = None,
    former: Collection[str] = (),
) -> tuple[list[PublishedJobSpec], list[str]]:
    """Replace the JobSpecs of a repository on a branch name; mark missing ones as removed.

    Return the JobSpecs that are now published and the datasets that were marked.

    :param specs: each has `outputs`, a list of dataset names.
    :param declared_before: outputs that were declared where the branch left its fallback: those
        that are missing now are marked. None marks what the branch name itself had before.
    :param former: earlier names of this repository, whose JobSpecs it takes over.
    """
    _one_at_a_time(connection)
    moment = now(connection)
    outputs = {str(name) for spec in specs for name in spec["outputs"]}
    mine = jobspecs.c.repository.in_({repository, *former})
    live = jobspecs.c.removed == 0
    _check_owner(connection, outputs, branch, repository, mine)
    if declared_before is None:
        gone, dropped = _published_here(connection, branch, mine, live) - outputs, set[str]()
    else:
        theirs = _published_here(connection, branch, ~mine, live)
        gone = set(declared_before) - outputs - theirs
        # The fallback decides for what the branch declared only for a time.
        dropped = _published_here(connection, branch, mine) - outputs - gone
    common = {
        "branch": branch,
        "repository": repository,
        "commit_id": commit,
        "clean": int(clean),
        "actor": actor,
        "published_at": moment,
    }
    pointers: dict[str, JobSpecId] = {}
    rows = []
    for spec in specs:
        id = mint_jobspec()
        rows.append({"id": id, "removed": 0, "body": records.dump(dict(spec)), **common})
        note_written(connection, moment, id)
        pointers |= {str(name): id for name in spec["outputs"]}
    for name in sorted(gone):
        id = mint_jobspec()
        rows.append({"id": id, "removed": 1, "body": records.dump({"outputs": [name]}), **common})
        pointers[name] = id
    _write(connection, branch, rows, pointers, dropped)
    published = load_jobspecs(connection, branch=branch)
    return [s for s in published if s.repository == repository and not s.removed], sorted(gone)


def _one_at_a_time(connection: Connection) -> None:
    """Serialize publishing: two repositories must not both find a dataset without an owner."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _POSTGRES_LOCK})


def _write(
    connection: Connection,
    branch: str,
    rows: Sequence[Mapping[str, Any]],
    pointers: Mapping[str, JobSpecId],
    dropped: Iterable[str],
) -> None:
    for names in records.in_chunks([*pointers, *dropped]):
        connection.execute(
            delete(jobspec_outputs).where(
                jobspec_outputs.c.branch == branch, jobspec_outputs.c.dataset.in_(names)
            )
        )
    if rows:
        connection.execute(insert(jobspecs), list(rows))
        connection.execute(
            insert(jobspec_outputs),
            [{"branch": branch, "dataset": n, "jobspec_id": id} for n, id in pointers.items()],
        )


def _check_owner(
    connection: Connection,
    outputs: Iterable[str],
    branch: str,
    repository: str,
    mine: sa.ColumnElement[bool],
) -> None:
    """Raise if another repository owns an output; record this repository as the owner.

    Among the projects of one Git repository, each branch has its own owners, as in Git's trees.
    """
    root = repository.partition("//")[0]
    column = jobspecs.c.repository
    is_near = sa.or_(column == root, column.startswith(f"{root}//", autoescape=True))
    for name in sorted(outputs):
        parsed = parse_dataset_name(name)
        here = (
            datasets.c.namespace == records.namespace_key(parsed.namespace),
            datasets.c.name == parsed.name,
        )
        known = connection.execute(
            select(column)
            .join(jobspec_outputs, jobspec_outputs.c.jobspec_id == jobspecs.c.id)
            .where(
                jobspec_outputs.c.dataset == name,
                ~mine,
                jobspecs.c.removed == 0,
                sa.or_(jobspec_outputs.c.branch == branch, ~is_near),
            )
            .limit(1)
        ).scalar_one_or_none()
        if known is not None:
            raise Conflict(
                f"dataset {name} is made by the repository {known}, so {repository} cannot "
                "publish a JobSpec for it. Remove the transform there and publish that first, or "
                "choose another name.",
                dataset=name,
                owner=known,
            )
        connection.execute(update(datasets).where(*here).values(repository=repository))


def _published_here(
    connection: Connection, branch: str, *conditions: sa.ColumnElement[bool]
) -> set[str]:
    """Return the datasets with a JobSpec or a mark on a branch name, of those that match."""
    query = (
        select(jobspec_outputs.c.dataset)
        .join(jobspecs, jobspecs.c.id == jobspec_outputs.c.jobspec_id)
        .where(jobspec_outputs.c.branch == branch, *conditions)
    )
    return set(connection.execute(query).scalars())


def load_jobspecs(
    connection: Connection,
    *,
    branch: str | None = None,
    dataset: str | None = None,
    repository: str | None = None,
    commit: str | None = None,
) -> list[PublishedJobSpec]:
    """Return the JobSpecs published now, removed marks included; of a commit, replaced ones too."""
    given = {jobspec_outputs.c.branch: branch, jobspec_outputs.c.dataset: dataset}
    source = {jobspecs.c.repository: repository, jobspecs.c.commit_id: commit}
    query = records.filtered(select(jobspecs), source).order_by(jobspecs.c.id)
    if commit is None or branch is not None or dataset is not None:
        current = records.filtered(select(jobspec_outputs.c.jobspec_id), given)
        query = query.where(jobspecs.c.id.in_(current))
    policy = records.policy_of(connection)
    return [_to_jobspec(row, policy) for row in connection.execute(query).mappings()]


def datasets_with_jobspec(connection: Connection, branch: str) -> set[str]:
    """Return the datasets that JobSpecs on this branch name produce; removed marks do not count."""
    return _published_here(connection, branch, jobspecs.c.removed == 0)


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """The JobSpec that a branch name has for a dataset; a removed mark has no logic."""

    dataset: str
    branch: str
    jobspec: JobSpecId
    removed: bool
    # The stored JSON, parsed on demand: a graph reaches only a few of all pointers.
    text: str

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = records.load(self.text)
        return found


def find_pointers(connection: Connection, chain: Sequence[str]) -> list[Pointer]:
    """Return the pointers of every branch name of a chain."""
    query = (
        select(
            jobspec_outputs.c.dataset,
            jobspec_outputs.c.branch,
            jobspecs.c.id,
            jobspecs.c.removed,
            jobspecs.c.body,
        )
        .join(jobspecs, jobspecs.c.id == jobspec_outputs.c.jobspec_id)
        .where(jobspec_outputs.c.branch.in_(list(chain)))
    )
    return [
        Pointer(dataset=dataset, branch=branch, jobspec=id, removed=bool(removed), text=body)
        for dataset, branch, id, removed, body in connection.execute(query)
    ]


def _to_jobspec(row: RowMapping, policy: ReadPolicy | None) -> PublishedJobSpec:
    body = records.load(row["body"])
    return records.noun_of(
        PublishedJobSpec,
        row,
        commit=row["commit_id"],
        clean=bool(row["clean"]),
        removed=bool(row["removed"]),
        body=body if policy is None else policy.shown_part(body),
    )
