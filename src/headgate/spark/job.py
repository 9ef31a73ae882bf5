"""The process of one job attempt, forked from a nursery.

On stdin come two lines: where the JVM is, then, as soon as there is a job, its document.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headgate.errors import UserCodeFailed
from headgate.model.names import parse_dataset_name
from headgate.spark.attach import Attached, attach, join
from headgate.spark.document import EventKind, JobDocument
from headgate.spark.failure import describe
from headgate.spark.gateway import GatewayAddress
from headgate.spark.io import Written, make_input, make_output
from headgate.spark.job_checks import JobChecks
from headgate.spark.reporting import ProgressWatch, Reporter, end_with_parent
from headgate.spark.session import configure
from headgate.transforms import Transform, TransformContext
from headgate.transforms.finding import import_roots, load_transform
from headgate.transforms.running import Outcome, run_transform


def main(events_fd: int) -> None:
    """Runs the attempt and ends the process: 0 if it succeeded, else 1."""
    reporter = Reporter(events_fd)
    session = join(GatewayAddress(**json.loads(_next_line())))
    document = JobDocument.from_json(_next_line())
    end_with_parent()
    _go_to_work(document)
    code = run(document, session, reporter)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: a thread that user code left running must not keep the attempt alive.
    os._exit(code)


def _next_line() -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        # Whoever started this process is gone, or has no job for it.
        os._exit(0)
    return line.decode()


def _go_to_work(document: JobDocument) -> None:
    if document.directory is not None:
        os.chdir(document.directory)
    if document.log is not None:
        with Path(document.log).open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())


def run(document: JobDocument, session: Any, reporter: Reporter) -> int:
    """The attempt from its settings to the last event; user code's failures end here."""
    bundle = Path(document.bundle)
    attached: Attached | None = None
    checks = JobChecks()
    try:
        attached = attach(session, conf=document.conf, tag=document.tag, bundle=bundle)
        reporter.say(EventKind.STARTED, pid=os.getpid(), tags=attached.tags)
        with ProgressWatch(attached.task_progress, reporter):
            outcome = _compute(document, attached, reporter, checks)
    # SystemExit too: user code that exits has not finished its work.
    except BaseException as error:
        shown = error.__cause__ if isinstance(error, UserCodeFailed) and error.__cause__ else error
        facts = describe(shown, bundle)
        sys.stderr.write(facts["traceback"])
        reporter.say(
            EventKind.FAILED,
            **facts,
            spark_jobs=attached.spark_jobs() if attached else 0,
            checks=checks.to_json(),
        )
        return 1
    reporter.say(
        EventKind.DONE,
        written=outcome.written,
        aborted=outcome.aborted,
        spark_jobs=attached.spark_jobs(),
        checks=checks.to_json(),
    )
    return 0


def _compute(
    document: JobDocument, attached: Attached, reporter: Reporter, checks: JobChecks
) -> Outcome:
    """The transform between its checks: those of inputs before it, those of outputs after it."""
    transform = _load(document)
    session = configure(attached.session, transform.options.spark_conf)

    def report(written: Written) -> None:
        reporter.say(EventKind.WRITTEN, **asdict(written))

    checks.before(session, transform, document.inputs)
    outcome = run_transform(
        transform,
        {
            name: make_input(session, name, source, incremental=document.incremental)
            for name, source in document.inputs.items()
        },
        {
            name: make_output(session, name, target, transform.outputs[name], report)
            for name, target in document.outputs.items()
        },
        TransformContext(
            spark_session=session,
            is_incremental=document.incremental,
            branch=document.branch,
            fallback_branches=document.fallback,
            parameters=document.parameters,
        ),
    )
    checks.after(session, transform, document.outputs, outcome.written)
    return outcome


def _load(document: JobDocument) -> Transform:
    sys.path[:0] = [str(root) for root in import_roots(Path(document.bundle))]
    module = importlib.import_module(document.module)
    return load_transform(
        module, [parse_dataset_name(target.dataset) for target in document.outputs.values()]
    )
