"""Turns a transform into the declaration that a JobSpec carries."""

from __future__ import annotations

from headgate.model.ids import TransactionId
from headgate.model.jobspecs import (
    CheckSpec,
    Declaration,
    InputSpec,
    OutputSpec,
    ParameterSpec,
)
from headgate.transforms.declarations import Check, Input, Output
from headgate.transforms.definition import Transform


def describe(transform: Transform, *, module: str, file: str) -> Declaration:
    """What the transform declares; `module` is the one in which it is found by name."""
    options = transform.options
    return Declaration(
        module=module,
        function=transform.name,
        file=file,
        line=transform.place.line,
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
