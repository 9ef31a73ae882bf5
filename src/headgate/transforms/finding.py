"""Finds a project's modules, and the transforms that a module offers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from headgate.errors import Invalid
from headgate.model.names import DatasetName
from headgate.transforms.definition import Transform

SOURCE_LAYOUT = "src"


def import_roots(tree: Path) -> tuple[Path, ...]:
    """The directories from which a project's modules are imported, first the `src` layout's."""
    source = tree / SOURCE_LAYOUT
    if source.is_dir() and not (source / "__init__.py").exists():
        return source, tree
    return (tree,)


def transforms_of(module: ModuleType) -> tuple[Transform, ...]:
    """All transforms among a module's names, also inside its lists, tuples and dicts, once each.

    Those that another module defines and this one only imports are included: whoever looks at
    many modules tells them apart by identity.
    """
    found: dict[int, Transform] = {}
    for value in list(vars(module).values()):
        for transform in _in_value(value):
            found.setdefault(id(transform), transform)
    return tuple(found.values())


def load_transform(module: ModuleType, outputs: Collection[DatasetName]) -> Transform:
    """The transform of a module that writes exactly these datasets."""
    for transform in transforms_of(module):
        if transform.datasets_written == frozenset(outputs):
            return transform
    wanted = ", ".join(sorted(str(name) for name in outputs))
    raise Invalid(
        f"module {module.__name__} has no transform that writes {wanted}. What a module defines "
        "must not depend on time, environment or machine; publish the JobSpecs again.",
        module=module.__name__,
    )


def _in_value(value: object) -> Iterator[Transform]:
    if isinstance(value, Transform):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (item for item in value if isinstance(item, Transform))
    elif isinstance(value, Mapping):
        yield from (item for item in value.values() if isinstance(item, Transform))
