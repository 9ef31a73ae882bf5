"""Tables that a task reads and writes beside its workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.errors import InvalidName
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.transforms.where import Place, calling_place


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Which tables the task's Spark session may read, and which it writes, by dataset name.

    They lie on the branch that the task's input names, and what was written is published in the
    same publication as the workspace.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    # Spark settings of this task's session.
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = calling_place()
        object.__setattr__(self, "inputs", _names(self.inputs, "inputs", place))
        object.__setattr__(self, "outputs", _names(self.outputs, "outputs", place))
        if not self.inputs and not self.outputs:
            raise place.refuse("TableSpec names no table")
        both = sorted(set(self.inputs) & set(self.outputs))
        if both:
            raise place.refuse(f"TableSpec has {both[0]!r} as input and as output")

    @property
    def read(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.inputs)

    @property
    def written(self) -> tuple[DatasetName, ...]:
        return tuple(parse_dataset_name(name) for name in self.outputs)


def _names(given: object, what: str, place: Place) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, tuple | list):
        raise place.refuse(f"TableSpec.{what} is a list of dataset names, not {given!r}")
    for name in given:
        try:
            parse_dataset_name(name)
        except (InvalidName, TypeError, AttributeError) as error:
            raise place.refuse(f"TableSpec.{what}: {error}") from error
    if len(set(given)) != len(given):
        raise place.refuse(f"TableSpec.{what} names a table twice")
    return tuple(given)
