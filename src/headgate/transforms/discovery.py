"""Finds the transforms of a project's modules and describes them for their JobSpecs."""

import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from headgate.errors import Invalid
from headgate.model.ids import TransactionId
from headgate.model.jobspecs import CheckSpec, Declaration, InputSpec, OutputSpec, ParameterSpec
from headgate.model.names import DatasetName
from headgate.transforms.declarations import Check, Input, Output
from headgate.transforms.definition import Transform
from headgate.transforms.source_location import calling_location

SOURCE_LAYOUT = "src"


class Pipeline:
    """A list of transforms, no two of which write the same dataset.

    A module that has a pipeline among its names offers all of its transforms to builds.

    ::

        pipeline = Pipeline()
        pipeline.discover_transforms(datasets)
    """

    def __init__(self, *transforms: Transform) -> None:
        self._transforms: list[Transform] = []
        self.add_transforms(*transforms)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(self._transforms)

    def add_transforms(self, *transforms: Transform) -> None:
        """Add transforms; one that is already in the pipeline is ignored."""
        location = calling_location()
        for new in transforms:
            if not isinstance(new, Transform):
                raise location.error(f"a pipeline is made of transforms, not {new!r}")
            for known in self._transforms:
                both = known.datasets_written & new.datasets_written
                if both and known is not new:
                    shown = ", ".join(sorted(map(str, both)))
                    raise location.error(f"{known.name} and {new.name} both write {shown}")
            if new not in self._transforms:
                self._transforms.append(new)

    def discover_transforms(self, *modules: ModuleType) -> None:
        """Add all transforms of these modules and, for packages, of their submodules."""
        location = calling_location()
        for module in modules:
            if not isinstance(module, ModuleType):
                raise location.error(f"discover_transforms takes modules, not {module!r}")
            self.add_transforms(*transforms_of(module))
            for found in pkgutil.walk_packages(
                getattr(module, "__path__", ()), f"{module.__name__}."
            ):
                self.add_transforms(*transforms_of(importlib.import_module(found.name)))


def import_roots(tree: Path) -> tuple[Path, ...]:
    """Return the directories from which a project's modules are imported, `src` first."""
    source = tree / SOURCE_LAYOUT
    if source.is_dir() and not (source / "__init__.py").exists():
        return source, tree
    return (tree,)


def transforms_of(module: ModuleType) -> tuple[Transform, ...]:
    """Return the transforms among a module's names, collections and pipelines, once each.

    Imported transforms are included; callers that read many modules compare by identity.
    """
    found: dict[int, Transform] = {}
    for value in list(vars(module).values()):
        for transform in _in_value(value):
            found.setdefault(id(transform), transform)
    return tuple(found.values())


def load_transform(module: ModuleType, outputs: Collection[DatasetName]) -> Transform:
    """Return the transform of a module that writes exactly these datasets."""
    for transform in transforms_of(module):
        if transform.datasets_written == frozenset(outputs):
            return transform
    wanted = ", ".join(sorted(str(name) for name in outputs))
    raise Invalid(
        f"module {module.__name__} has no transform that writes {wanted}. A module must define the "
        "same transforms at any time and on any machine; publish the JobSpecs again.",
        module=module.__name__,
    )


def _in_value(value: object) -> Iterator[Transform]:
    if isinstance(value, Transform):
        yield value
    elif isinstance(value, Pipeline):
        yield from value.transforms
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (item for item in value if isinstance(item, Transform))
    elif isinstance(value, Mapping):
        yield from (item for item in value.values() if isinstance(item, Transform))


def describe(transform: Transform, *, module: str, file: str) -> Declaration:
    """Return the declaration of a transform that is found by name in `module`."""
    options = transform.options
    return Declaration(
        module=module,
        function=transform.name,
        file=file,
        line=transform.location.line,
        inputs=tuple(_input(name, given) for name, given in transform.inputs.items()),
        outputs=tuple(_output(name, output) for name, output in transform.outputs.items()),
        parameters=tuple(
            ParameterSpec(
                name=name,
                kind=parameter.kind,
                default=parameter.default,
                description=parameter.description,
            )
            for name, parameter in transform.parameters.items()
        ),
        incremental=transform.incremental,
        fresh=options.fresh,
        bundle_data=options.bundle_data,
        allowed_run_seconds=options.allowed_run_seconds,
        profile=options.profile,
        spark_conf=dict(options.spark_conf),
        allow_empty=options.allow_empty,
    )


def _input(name: str, given: Input) -> InputSpec:
    return InputSpec(
        name=name,
        dataset=given.dataset,
        branch=given.branch,
        transaction=None if given.transaction is None else TransactionId(given.transaction),
        checks=_checks(given.checks),
        description=given.description,
    )


def _output(name: str, output: Output) -> OutputSpec:
    return OutputSpec(
        name=name,
        dataset=output.dataset,
        kind=output.kind,
        checks=_checks(output.checks),
        partition_cols=output.partition_cols,
        sort_by=output.sort_by,
        description=output.description,
    )


def _checks(checks: tuple[Check, ...]) -> tuple[CheckSpec, ...]:
    return tuple(
        CheckSpec(
            name=check.name,
            on_error=check.on_error.value,
            expectation=check.expectation.to_json(),
            description=check.description,
        )
        for check in checks
    )
