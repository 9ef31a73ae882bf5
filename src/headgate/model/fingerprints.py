"""What a job's outputs are made from, as keys that freshness and adoption compare; pure.

A job's fingerprint is all that decides what its outputs hold. Its inputs key says whether the
views that are there were made from the same; its build key finds transactions that can be adopted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.model.ids import ContentId
from headgate.model.jobspecs import JobSpec
from headgate.model.names import DatasetName
from headgate.model.parameters import effective_parameters
from headgate.model.past import Base

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that decides what a job's outputs hold; a built transaction carries it."""

    logic: str
    parameters: str
    environment: str
    # (input name, content id), by name.
    inputs: tuple[tuple[str, str], ...]
    # Where only what was added was read: what each output held before, by dataset; else None.
    base: tuple[tuple[str, str | None], ...] | None = None

    @property
    def inputs_key(self) -> str:
        return digest(
            ["inputs-1", self.logic, self.parameters, self.environment, list(self.inputs)]
        )

    @property
    def build_key(self) -> str:
        return digest(["build-1", self.inputs_key, None if self.base is None else list(self.base)])

    def to_json(self) -> dict[str, Any]:
        return {
            "logic": self.logic,
            "parameters": self.parameters,
            "environment": self.environment,
            "inputs": [list(pair) for pair in self.inputs],
            "base": None if self.base is None else [list(pair) for pair in self.base],
        }


def fingerprint_from_json(data: Mapping[str, Any]) -> Fingerprint:
    base = data["base"]
    return Fingerprint(
        logic=data["logic"],
        parameters=data["parameters"],
        environment=data["environment"],
        inputs=tuple((name, content) for name, content in data["inputs"]),
        base=None if base is None else tuple((name, content) for name, content in base),
    )


def fingerprint(
    spec: JobSpec,
    *,
    parameters: Mapping[str, Any],
    environment: str,
    inputs: Mapping[str, ContentId],
) -> Fingerprint:
    """The fingerprint of a JobSpec that reads all of its inputs."""
    return Fingerprint(
        logic=spec.logic_hash,
        parameters=digest(effective_parameters(spec, parameters)),
        environment=environment,
        inputs=tuple(sorted(inputs.items())),
    )


def on_top_of(made_from: Fingerprint, bases: Mapping[DatasetName, Base]) -> Fingerprint:
    """The fingerprint of a job that adds to what its outputs hold."""
    contents = sorted((str(name), base.content) for name, base in bases.items())
    return replace(made_from, base=tuple(contents))


def digest(value: Any) -> str:
    """The sha256 of a JSON value, the same on every machine and Python."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()
