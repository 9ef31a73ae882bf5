"""The process of one job attempt: `python -m headgate.spark.job EVENTS_FD`, a document on stdin."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

from headgate.errors import UserCodeFailed
from headgate.model.names import parse_dataset_name
from headgate.spark.attach import Attached, attach
from headgate.spark.document import EventKind, JobDocument
from headgate.spark.failure import describe
from headgate.spark.gateway import GatewayAddress
from headgate.spark.io import Written, make_input, make_output
from headgate.spark.reporting import ProgressWatch, Reporter, end_with_parent
from headgate.spark.session import configure
from headgate.transforms import Transform, TransformContext
from headgate.transforms.finding import import_roots, load_transform
from headgate.transforms.running import Outcome, run_transform


def main() -> None:
    """Runs the attempt and ends the process: 0 if it succeeded, else 1."""
    reporter = Reporter(int(sys.argv[1]))
    document = JobDocument.from_json(sys.stdin.buffer.readline().decode())
    end_with_parent()
    code = run(document, reporter)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: a thread that user code left running must not keep the attempt alive.
    os._exit(code)


def run(document: JobDocument, reporter: Reporter) -> int:
    """The attempt from the first import to the last event; user code's failures end here."""
    bundle = Path(document.bundle)
    attached: Attached | None = None
    try:
        attached = attach(
            GatewayAddress(port=document.gateway_port, secret=document.gateway_secret),
            conf=document.conf,
            tag=document.tag,
            bundle=bundle,
        )
        reporter.say(EventKind.STARTED, pid=os.getpid(), tags=attached.tags)
        with ProgressWatch(attached.task_progress, reporter):
            outcome = _compute(document, attached, reporter)
    # SystemExit too: user code that exits has not finished its work.
    except BaseException as error:
        shown = error.__cause__ if isinstance(error, UserCodeFailed) and error.__cause__ else error
        facts = describe(shown, bundle)
        sys.stderr.write(facts["traceback"])
        reporter.say(EventKind.FAILED, **facts, spark_jobs=attached.spark_jobs() if attached else 0)
        return 1
    reporter.say(
        EventKind.DONE,
        written=outcome.written,
        aborted=outcome.aborted,
        spark_jobs=attached.spark_jobs(),
    )
    return 0


def _compute(document: JobDocument, attached: Attached, reporter: Reporter) -> Outcome:
    transform = _load(document)
    session = configure(attached.session, transform.options.spark_conf)

    def report(written: Written) -> None:
        reporter.say(EventKind.WRITTEN, **asdict(written))

    return run_transform(
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


def _load(document: JobDocument) -> Transform:
    sys.path[:0] = [str(root) for root in import_roots(Path(document.bundle))]
    module = importlib.import_module(document.module)
    return load_transform(
        module, [parse_dataset_name(target.dataset) for target in document.outputs.values()]
    )


if __name__ == "__main__":
    main()
