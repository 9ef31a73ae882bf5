"""JobSpecs: published logic, as frozen values with a JSON form; and the jobs of a build, sorted."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any

from headgate.errors import CyclicJobs, JobSpecNotFound, OutputContested
from headgate.model.ids import Instant, JobSpecId, TransactionId
from headgate.model.names import DatasetName, is_pattern, nearest, parse_dataset_name
from headgate.model.nouns import DatasetKind, Json, as_json

FRESH_INPUTS = "inputs"
FRESH_NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class CheckSpec:
    name: str
    # FAIL or WARN.
    on_error: str
    # The expectation's tree, as the transforms room writes it.
    expectation: Mapping[str, Any]
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """An input by the name of its parameter; a branch or transaction pins it."""

    name: str
    dataset: DatasetName
    branch: str | None = None
    transaction: TransactionId | None = None
    checks: tuple[CheckSpec, ...] = ()
    description: str = ""

    @property
    def pinned(self) -> bool:
        """True if the input is read from its own branch or transaction, not from the chain."""
        return self.branch is not None or self.transaction is not None


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    name: str
    dataset: DatasetName
    kind: DatasetKind = DatasetKind.TABLE
    checks: tuple[CheckSpec, ...] = ()
    partition_cols: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    name: str
    # string, integer, float or boolean.
    kind: str
    default: str | int | float | bool
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class IncrementalSpec:
    require_incremental: bool = False
    semantic_version: int = 1
    snapshot_inputs: tuple[str, ...] = ()
    allow_retention: bool = False
    strict_append: bool = False


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A transform as declared: everything but the code that it runs."""

    module: str
    function: str
    # Relative to the project's root, for people; never part of a hash.
    file: str
    line: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    parameters: tuple[ParameterSpec, ...] = ()
    incremental: IncrementalSpec | None = None
    # "inputs", "never", or the greatest age in seconds.
    fresh: str | float = FRESH_INPUTS
    bundle_data: tuple[str, ...] = ()
    allowed_run_seconds: float | None = None
    profile: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False

    def to_json(self) -> Json:
        return as_json(self)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The origin of published logic; `clean` is false for a working tree with changes."""

    repository: str
    commit: str
    branch: str
    clean: bool

    def to_json(self) -> Json:
        return as_json(self)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Published logic: a declaration, the hash of its logic, and the bundle that holds its code."""

    declaration: Declaration
    logic_hash: str
    # The bundle's sha256.
    bundle: str
    source: Source
    # Of the logic without its locked dependencies; None if an earlier release published it.
    code_hash: str | None = None

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return self.declaration.inputs

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        return self.declaration.outputs

    @property
    def title(self) -> str:
        """The job's name in messages: `module.function`."""
        return f"{self.declaration.module}.{self.declaration.function}"

    def to_json(self) -> Json:
        return as_json(self)


@dataclass(frozen=True, kw_only=True)
class PublishedJobSpec:
    """A published JobSpec, or the mark that a dataset's JobSpec was removed on the branch name."""

    id: JobSpecId
    branch: str
    repository: str
    commit: str
    clean: bool
    removed: bool
    actor: str
    published_at: Instant
    body: Mapping[str, Any]


def jobspec_from_json(data: Mapping[str, Any]) -> JobSpec:
    return JobSpec(
        declaration=declaration_from_json(data["declaration"]),
        logic_hash=data["logic_hash"],
        code_hash=data.get("code_hash"),
        bundle=data["bundle"],
        source=Source(**data["source"]),
    )


def declaration_from_json(data: Mapping[str, Any]) -> Declaration:
    incremental = data["incremental"]
    if incremental is not None:
        snapshot_inputs = tuple(incremental["snapshot_inputs"])
        incremental = IncrementalSpec(**{**incremental, "snapshot_inputs": snapshot_inputs})
    return Declaration(
        **{
            **data,
            "inputs": tuple(_input(item) for item in data["inputs"]),
            "outputs": tuple(_output(item) for item in data["outputs"]),
            "parameters": tuple(ParameterSpec(**item) for item in data["parameters"]),
            "incremental": incremental,
            "bundle_data": tuple(data["bundle_data"]),
            "profile": tuple(data["profile"]),
        }
    )


def _input(data: Mapping[str, Any]) -> InputSpec:
    return InputSpec(
        **{**data, "dataset": parse_dataset_name(data["dataset"]), "checks": _checks(data)}
    )


def _output(data: Mapping[str, Any]) -> OutputSpec:
    return OutputSpec(
        **{
            **data,
            "dataset": parse_dataset_name(data["dataset"]),
            "kind": DatasetKind(data["kind"]),
            "checks": _checks(data),
            "partition_cols": tuple(data["partition_cols"]),
            "sort_by": tuple(data["sort_by"]),
        }
    )


def _checks(data: Mapping[str, Any]) -> tuple[CheckSpec, ...]:
    return tuple(CheckSpec(**item) for item in data["checks"])


# The jobs of a build, in dependency order, from targets and JobSpecs.


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


def match_targets(
    targets: Iterable[str],
    chain: Sequence[str],
    published: Published,
    *,
    may_build: Callable[[JobSpec], bool],
) -> list[DatasetName]:
    """Return the named datasets, and of each pattern those that the caller may build."""
    found: list[DatasetName] = []

    def buildable(names: Iterable[DatasetName]) -> list[DatasetName]:
        specs = ((name, resolve_jobspec(name, chain, published)) for name in names)
        return [n for n, one in specs if isinstance(one, Resolved) and may_build(one.spec)]

    for target in targets:
        near: list[DatasetName] = []
        if is_pattern(target):
            matching = sorted(name for name in published if fnmatchcase(str(name), target))
            matched = buildable(matching)
        else:
            name = parse_dataset_name(target)
            known = {str(one): one for one in published}
            matched = [name] if name in published else []
            if not matched:
                near = buildable(known[n] for n in nearest(target, known, n=3))
        if not matched:
            raise JobSpecNotFound(
                dataset=target, chain=chain, removed_on=None, near=[str(one) for one in near]
            )
        found += matched
    return found


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


def _collect(
    targets: Iterable[DatasetName], chain: Sequence[str], published: Published, *, upstream: bool
) -> list[Resolved]:
    wanted: dict[DatasetName, Resolved] = {}
    waiting = list(dict.fromkeys(targets))
    for target in waiting:
        if not isinstance(resolve_jobspec(target, chain, published), Resolved):
            marks = published.get(target, {})
            removed_on = next((b for b in chain if isinstance(marks.get(b), Removed)), None)
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


def reads_build_branch(given: InputSpec, build_branch: str) -> bool:
    """Return whether an input reads what this build writes to its dataset."""
    return given.transaction is None and given.branch in {None, build_branch}
