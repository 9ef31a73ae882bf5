"""The checks of one job: on what it reads before the transform, on what it wrote after it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headgate.errors import ChecksFailed
from headgate.model.checks import CheckResult, CheckStage, stopping
from headgate.model.jobspecs import Declaration, InputSpec, OutputSpec
from headgate.spark.checks import evaluate_checks, unevaluated
from headgate.spark.document import Source, Target
from headgate.spark.io import table_identifier
from headgate.transforms import Input, Output, Transform
from headgate.transforms.describing import describe
from headgate.transforms.where import Place


class JobChecks:
    """Evaluates a job's checks through its session's catalog, and keeps every result."""

    def __init__(self) -> None:
        self.results: list[CheckResult] = []

    def before(self, session: Any, transform: Transform, inputs: Mapping[str, Source]) -> None:
        """Checks the whole of each input, or raises if one that must hold does not."""
        self._check(session, CheckStage.PRE, transform, _declared(transform).inputs, inputs)

    def after(
        self,
        session: Any,
        transform: Transform,
        outputs: Mapping[str, Target],
        written: Collection[str],
    ) -> None:
        """Checks the whole of each written output, or raises if one that must hold does not."""
        specs = [spec for spec in _declared(transform).outputs if spec.name in written]
        self._check(session, CheckStage.POST, transform, specs, outputs)

    def to_json(self) -> list[dict[str, Any]]:
        return [result.to_json() for result in self.results]

    def _check(
        self,
        session: Any,
        stage: CheckStage,
        transform: Transform,
        specs: Iterable[InputSpec | OutputSpec],
        places: Mapping[str, Source] | Mapping[str, Target],
    ) -> None:
        found: list[CheckResult] = []
        for spec in specs:
            if spec.checks:
                found += _evaluated(session, stage, spec, places[spec.name].files is not None)
        self.results += found
        if stops := stopping(found):
            place = _place_of(stops[0].name, transform)
            raise ChecksFailed(
                before=stage is CheckStage.PRE,
                failed=[(result.dataset, result.name, result.reason) for result in stops],
                file=place.file,
                line=place.line,
            )


def _place_of(name: str, transform: Transform) -> Place:
    """The line on which the check of that name is declared: names are unique in a transform."""
    given: list[Input | Output] = [*transform.inputs.values(), *transform.outputs.values()]
    checks = (check for io in given for check in io.checks)
    return next((check.place for check in checks if check.name == name), transform.place)


def _declared(transform: Transform) -> Declaration:
    return describe(transform, module=transform.module, file=transform.place.file)


def _evaluated(
    session: Any, stage: CheckStage, spec: InputSpec | OutputSpec, is_files: bool
) -> tuple[CheckResult, ...]:
    dataset = str(spec.dataset)
    if is_files:
        reason = f"{dataset} is a tree of files, and checks look at the rows of tables"
        return unevaluated(spec.checks, dataset=dataset, stage=stage, reason=reason)
    frame = session.table(table_identifier(spec.dataset))
    return evaluate_checks(frame, spec.checks, dataset=dataset, stage=stage)
