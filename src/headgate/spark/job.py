"""The process of one job attempt, forked from a nursery.

On stdin come two lines: where the engine is, then, as soon as there is a job, its document.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from headgate.model.names import parse_dataset_name
from headgate.spark.document import EventKind, JobDocument
from headgate.spark.engines import Address, Attached, read_address
from headgate.spark.failure import describe
from headgate.spark.io import Written, make_input, make_output
from headgate.spark.job_checks import JobChecks
from headgate.spark.joining import attach, join
from headgate.spark.quiet import told_once
from headgate.spark.reporting import ProgressWatch, Reporter, end_with_parent
from headgate.spark.session import configure
from headgate.transforms import Transform, TransformContext
from headgate.transforms.finding import import_roots, load_transform
from headgate.transforms.running import Outcome, run_transform

_FETCH_POLL_SECONDS = 0.02


def main(events_fd: int) -> None:
    """Runs the attempt and ends the process: 0 if it succeeded, else 1."""
    reporter = Reporter(events_fd)
    address = read_address(_next_line())
    session = join(address)
    document = JobDocument.from_json(_next_line())
    end_with_parent()
    _go_to_work(document)
    code = run(document, address, session, reporter)
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
    if document.extent is not None:
        sys.stderr.write(f"{document.extent}\n")


def run(document: JobDocument, address: Address, session: Any, reporter: Reporter) -> int:
    """The attempt from its settings to the last event; user code's failures end here."""
    bundle = Path(document.bundle)
    attached: Attached | None = None
    checks = JobChecks()
    try:
        attached = attach(address, session, conf=document.conf, tag=document.tag, bundle=bundle)
        reporter.say(EventKind.STARTED, pid=os.getpid(), tags=attached.tags)
        # Of an error its log gets the traceback.
        with told_once(), ProgressWatch(partial(_stage_progress, attached), reporter):
            outcome = _compute(document, attached, reporter, checks)
    # SystemExit too: user code that exits has not finished its work.
    except BaseException as error:
        facts = describe(error, bundle)
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
        replaced=outcome.replaced,
        aborted=outcome.aborted,
        spark_jobs=attached.spark_jobs(),
        checks=checks.to_json(),
    )
    return 0


def _stage_progress(attached: Attached) -> dict[str, int] | None:
    found = attached.stage_progress()
    return asdict(found) if found else None


def _compute(
    document: JobDocument, attached: Attached, reporter: Reporter, checks: JobChecks
) -> Outcome:
    """The transform between its checks: those of inputs before it, those of outputs after it."""
    transform = _load(document)
    session = configure(attached.session, transform.options.spark_conf)

    def report(written: Written) -> None:
        reporter.say(EventKind.WRITTEN, **asdict(written))

    def fetch(directory: Path) -> Path:
        if not directory.is_dir():
            reporter.say(EventKind.NEEDS, directory=str(directory))
        while not directory.is_dir():
            time.sleep(_FETCH_POLL_SECONDS)
        return directory

    extent = document.incremental
    checks.before(session, transform, document.inputs)
    outcome = run_transform(
        transform,
        {
            name: make_input(session, name, source, incremental=extent, fetch=fetch)
            for name, source in document.inputs.items()
        },
        {
            name: make_output(
                session,
                name,
                target,
                transform.outputs[name],
                report,
                incremental=extent,
                fetch=fetch,
            )
            for name, target in document.outputs.items()
        },
        TransformContext(
            spark_session=session,
            is_incremental=extent,
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
