"""The process of one job attempt, forked from a nursery.

On stdin come two lines: where the engine is, then, as soon as there is a job, its document.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.errors import HeadgateError, UserCodeFailed
from headgate.model.names import parse_dataset_name
from headgate.spark import attach as classic
from headgate.spark import connect
from headgate.spark.checks import JobChecks
from headgate.spark.engines import Address, Attached, ConnectAddress, read_address
from headgate.spark.job_io import Written, make_input, make_output
from headgate.spark.job_protocol import EventKind, JobDocument
from headgate.spark.session import configure
from headgate.spark.sql import told_once
from headgate.transforms import Transform, TransformContext
from headgate.transforms.discovery import import_roots, load_transform
from headgate.transforms.invocation import Outcome, run_transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A failure of user code as its author wants to see it: the line, the message, the whole trace.

# The line after a traceback's last frame: frames are indented, and the error itself is not.
_WORKER_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.M)

# What Java's S3 client says deep in a stack whose top may be about a file that cannot be closed.
_OF_S3 = {
    "Unable to load credentials from any of the providers": (
        "Spark has no credentials for the bucket of this store: set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY where the job runs. A server tells its clients where S3 is, but no "
        "secret."
    ),
    "Unable to load region from any of the providers": (
        "Spark was not told the region of this store's bucket: set AWS_REGION where the job runs, "
        "or where the store is served."
    ),
}
_REFUSED_BY_S3 = re.compile(r"S3Exception: (.*Status Code: 403.*)")

# How Java's errors come out of the gateway, before their own words; what Iceberg's client puts
# before those of the catalog is its class and a word for the status.
_CALLED = re.compile(r"^An error occurred while calling \S+\n: ")
_PASSED_ON = re.compile(r"^org\.apache\.iceberg\.exceptions\.\w+: (?:Forbidden: )?")


def describe(error: BaseException, bundle: Path) -> dict[str, Any]:
    """The facts of a `failed` event; the file is relative to the bundle, None if not in it."""
    # What user code raised is told as itself; the boundary around it knows where it is declared.
    shown = error.__cause__ if isinstance(error, UserCodeFailed) and error.__cause__ else error
    text = "".join(traceback.format_exception(shown))
    file, line = _where(shown, text, bundle)
    if file is None and shown is not error:
        file, line = _where(error, text, bundle)
    return {
        "error": type(shown).__name__,
        "message": _short(str(shown)) or type(shown).__name__,
        "file": file,
        "line": line,
        "traceback": text,
    }


def _where(error: BaseException, text: str, bundle: Path) -> tuple[str | None, int | None]:
    """The innermost line of the user's: in a Python worker if the text tells, else here."""
    if isinstance(error, HeadgateError) and error.facts.get("file") is not None:
        # It says itself where the user declared what failed.
        found = _inside(error.facts["file"], bundle)
        return found, error.facts["line"] if found else None
    # Spark evaluates late: what fails in a function of the user's fails in a worker, whose trace
    # comes as text, while the stack of this process shows only who asked for the rows.
    if in_worker := _last_in(str(error), bundle):
        return in_worker
    if isinstance(error, SyntaxError) and error.filename:
        found = _inside(error.filename, bundle)
        return found, error.lineno if found else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := _inside(frame.filename, bundle):
            return found, frame.lineno
    return _last_in(text, bundle) or (None, None)


def _last_in(text: str, bundle: Path) -> tuple[str, int] | None:
    """The last line of the bundle's that a trace names: from here, or from where it was shipped."""
    here, name = re.escape(str(bundle)), re.escape(bundle.name)
    shipped = rf'[^"\n]*/{name}(?:\.zip)?'
    pattern = re.compile(rf'File "(?:{here}|{shipped})/([^"\n]+)", line (\d+)')
    if not (found := pattern.findall(text)):
        return None
    file, line = found[-1]
    # What is shipped begins where modules are imported, which may be the `src` directory.
    roots = [root for root in (bundle, *import_roots(bundle)) if (root / file).is_file()]
    return str((roots[0] / file).relative_to(bundle)) if roots else file, int(line)


def _short(text: str) -> str:
    """What went wrong, without Java's stack: a Python worker's last words, if it had any."""
    if traces := _WORKER_TRACE.findall(text):
        last: str = traces[-1]
        return last.strip()
    if found := next((told for said, told in _OF_S3.items() if said in text), None):
        return found
    if refused := _REFUSED_BY_S3.search(text):
        return f"S3 refuses the credentials that Spark has where the job runs: {refused[1]}"
    text = _PASSED_ON.sub("", _CALLED.sub("", text))
    return text.partition("\n\tat ")[0].partition("\n\nJVM stacktrace:")[0].strip()


def _inside(filename: str, bundle: Path) -> str | None:
    path = Path(filename)
    return str(path.relative_to(bundle)) if path.is_relative_to(bundle) else None


# How a job process speaks to its build, and how it notices that the build is gone.

_PROGRESS_SECONDS = 0.5


class Reporter:
    """Writes events to a pipe, each one line, whichever thread it comes from."""

    def __init__(self, fd: int) -> None:
        # What user code starts must not hold the pipe open after this process has ended.
        os.set_inheritable(fd, False)
        self._pipe = os.fdopen(fd, "wb", buffering=0)
        self._lock = threading.Lock()

    def say(self, kind: EventKind, **facts: Any) -> None:
        line = json.dumps({"event": kind.value, **facts}, default=str).encode() + b"\n"
        with self._lock:
            self._pipe.write(line)


def end_with_parent() -> None:
    """Kills this process and all it started once the other end of its stdin is closed."""
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(lifeline, 4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


class ProgressWatch:
    """Reports how far Spark is while it works, whenever that has changed."""

    def __init__(self, measure: Callable[[], Mapping[str, int] | None], reporter: Reporter) -> None:
        self._measure = measure
        self._reporter = reporter
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        last: Mapping[str, int] | None = None
        while not self._ended.wait(_PROGRESS_SECONDS):
            now = self._measure()
            if now and now != last:
                self._reporter.say(EventKind.PROGRESS, **now)
            last = now


# A job process joins the engine of its build, whichever kind that is.


def join(address: Address) -> SparkSession:
    """A new session of the engine, for a job that is not known yet."""
    if isinstance(address, ConnectAddress):
        return connect.join_remote(address)
    return classic.join(address)


def attach(
    address: Address, session: SparkSession, *, conf: Mapping[str, str], tag: str, bundle: Path
) -> Attached:
    """Gives a session that nobody has used yet to one job: its settings, its tag, its code."""
    give = connect.attach_remote if isinstance(address, ConnectAddress) else classic.attach
    return give(session, conf=conf, tag=tag, bundle=bundle)


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
