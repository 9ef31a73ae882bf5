"""JobSpecs: published logic, as frozen values with a JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.model.ids import Instant, JobSpecId, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import DatasetKind

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

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "expectation": dict(self.expectation)}


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

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "dataset": str(self.dataset),
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    name: str
    dataset: DatasetName
    kind: DatasetKind = DatasetKind.TABLE
    checks: tuple[CheckSpec, ...] = ()
    partition_cols: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "dataset": str(self.dataset),
            "kind": self.kind.value,
            "checks": [check.to_json() for check in self.checks],
            "partition_cols": list(self.partition_cols),
            "sort_by": list(self.sort_by),
        }


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    name: str
    # string, integer, float or boolean.
    kind: str
    default: str | int | float | bool
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class IncrementalSpec:
    require_incremental: bool = False
    semantic_version: int = 1
    snapshot_inputs: tuple[str, ...] = ()
    allow_retention: bool = False
    strict_append: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "snapshot_inputs": list(self.snapshot_inputs)}


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

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "inputs": [given.to_json() for given in self.inputs],
            "outputs": [output.to_json() for output in self.outputs],
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "incremental": self.incremental.to_json() if self.incremental else None,
            "bundle_data": list(self.bundle_data),
            "profile": list(self.profile),
            "spark_conf": dict(self.spark_conf),
        }


@dataclass(frozen=True, kw_only=True)
class Source:
    """The origin of published logic; `clean` is false for a working tree with changes."""

    repository: str
    commit: str
    branch: str
    clean: bool

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Published logic: a declaration, the hash of its logic, and the bundle that holds its code."""

    declaration: Declaration
    logic_hash: str
    # The bundle's sha256.
    bundle: str
    source: Source

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

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "declaration": self.declaration.to_json(),
            "source": self.source.to_json(),
        }


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
        bundle=data["bundle"],
        source=Source(**data["source"]),
    )


def declaration_from_json(data: Mapping[str, Any]) -> Declaration:
    incremental = data["incremental"]
    return Declaration(
        **{
            **data,
            "inputs": tuple(_input(item) for item in data["inputs"]),
            "outputs": tuple(_output(item) for item in data["outputs"]),
            "parameters": tuple(ParameterSpec(**item) for item in data["parameters"]),
            "incremental": None if incremental is None else _incremental(incremental),
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


def _incremental(data: Mapping[str, Any]) -> IncrementalSpec:
    return IncrementalSpec(**{**data, "snapshot_inputs": tuple(data["snapshot_inputs"])})
