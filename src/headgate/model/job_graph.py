"""The jobs of a build, in dependency order, from targets and JobSpecs; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from headgate.errors import CyclicJobs, JobSpecNotFound, OutputContested
from headgate.model.jobspecs import InputSpec, JobSpec
from headgate.model.nouns import DatasetName


class Removed(enum.Enum):
    """The mark in place of a JobSpec whose transform was removed: the fallback stops there."""

    MARK = "removed"


# By dataset and branch name: the JobSpec published there, or the mark.
Published = Mapping[DatasetName, Mapping[str, JobSpec | Removed]]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A JobSpec and the branch of the chain on which it was found."""

    branch: str
    spec: JobSpec


@dataclass(frozen=True, kw_only=True)
class Job:
    """One JobSpec of a build; `needs` are the positions of the jobs whose outputs it reads."""

    spec: JobSpec
    jobspec_branch: str
    needs: tuple[int, ...]
    # By input name, the position of the job that makes it in this build.
    made_by: Mapping[str, int]

    @property
    def outputs(self) -> tuple[DatasetName, ...]:
        return tuple(output.dataset for output in self.spec.outputs)


def resolve_jobspec(
    dataset: DatasetName, chain: Sequence[str], published: Published
) -> Resolved | Removed | None:
    """Return the JobSpec of the first branch of the chain that has one, or its mark."""
    on_branches = published.get(dataset)
    if not on_branches:
        return None
    for branch in chain:
        found = on_branches.get(branch)
        if found is not None:
            return found if isinstance(found, Removed) else Resolved(branch=branch, spec=found)
    return None


def compile_graph(
    targets: Iterable[DatasetName], chain: Sequence[str], published: Published, *, upstream: bool
) -> tuple[Job, ...]:
    """Return the jobs of the targets, with `upstream` also those of all inputs, sorted."""
    resolved = _collect(targets, chain, published, upstream=upstream)
    maker = {output.dataset: found for found in resolved for output in found.spec.outputs}
    order = _sorted(resolved, maker, chain[0])
    position = {id(found): index for index, found in enumerate(order)}
    jobs: list[Job] = []
    for found in order:
        made_by = {name: position[id(made)] for name, made in _inner_inputs(found, maker, chain[0])}
        jobs.append(
            Job(
                spec=found.spec,
                jobspec_branch=found.branch,
                needs=tuple(sorted(set(made_by.values()))),
                made_by=made_by,
            )
        )
    return tuple(jobs)


def reads_build_branch(given: InputSpec, build_branch: str) -> bool:
    """Return whether an input reads what this build writes to its dataset."""
    return given.transaction is None and given.branch in {None, build_branch}


def _collect(
    targets: Iterable[DatasetName], chain: Sequence[str], published: Published, *, upstream: bool
) -> list[Resolved]:
    wanted: dict[DatasetName, Resolved] = {}
    waiting = list(dict.fromkeys(targets))
    for target in waiting:
        if not isinstance(found := resolve_jobspec(target, chain, published), Resolved):
            removed_on = _removed_on(target, chain, published) if found else None
            raise JobSpecNotFound(dataset=str(target), chain=chain, removed_on=removed_on)
    while waiting:
        dataset = waiting.pop()
        found = resolve_jobspec(dataset, chain, published)
        if dataset in wanted or not isinstance(found, Resolved):
            continue
        for output in found.spec.outputs:
            _require_one_maker(output.dataset, found, chain, published)
            wanted[output.dataset] = found
        if upstream:
            waiting.extend(
                given.dataset
                for given in found.spec.inputs
                if reads_build_branch(given, chain[0]) and given.dataset not in wanted
            )
    unique = {id(found): found for found in wanted.values()}
    return sorted(unique.values(), key=lambda found: min(o.dataset for o in found.spec.outputs))


def _require_one_maker(
    dataset: DatasetName, found: Resolved, chain: Sequence[str], published: Published
) -> None:
    """Raise if another JobSpec on this chain makes the dataset: a job writes all its outputs."""
    other = resolve_jobspec(dataset, chain, published)
    # Identity first: comparing every field of every JobSpec would dominate a large plan.
    same = not isinstance(other, Resolved) or other.spec is found.spec or other.spec == found.spec
    if not same and isinstance(other, Resolved):
        raise OutputContested(
            dataset=str(dataset),
            first=f"{found.spec.title} (JobSpec on {found.branch!r})",
            second=f"{other.spec.title} (JobSpec on {other.branch!r})",
        )


def _removed_on(dataset: DatasetName, chain: Sequence[str], published: Published) -> str | None:
    marks = published.get(dataset, {})
    return next((branch for branch in chain if isinstance(marks.get(branch), Removed)), None)


def _inner_inputs(
    found: Resolved, maker: Mapping[DatasetName, Resolved], build_branch: str
) -> list[tuple[str, Resolved]]:
    return [
        (given.name, maker[given.dataset])
        for given in found.spec.inputs
        if given.dataset in maker and reads_build_branch(given, build_branch)
    ]


def _sorted(
    resolved: Sequence[Resolved], maker: Mapping[DatasetName, Resolved], build_branch: str
) -> list[Resolved]:
    by_id = {id(found): found for found in resolved}
    needs = {
        key: dict.fromkeys(id(made) for _, made in _inner_inputs(found, maker, build_branch))
        for key, found in by_id.items()
    }
    try:
        return [by_id[key] for key in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        cycle = [str(by_id[key].spec.outputs[0].dataset) for key in error.args[1]]
        raise CyclicJobs(cycle=cycle) from error
