"""The process of one job attempt, forked from the fork server.

It reads two lines from its stdin: the engine's address, then, when there is a job, its document. It
runs the transform between its checks, and sends events to the build until it ends.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError, UserCodeFailed, find_quoted_failure
from headgate.model.names import parse_dataset_name
from headgate.spark.checks import JobChecks
from headgate.spark.engines import Address, read_address
from headgate.spark.job_io import JobIO, Written
from headgate.spark.job_protocol import EventKind, JobDocument
from headgate.spark.job_session import JobSession, StageProgress, attach, join
from headgate.spark.session import configure
from headgate.spark.sql import SPARK_DISKS, without_error_log
from headgate.transforms import Transform, TransformContext
from headgate.transforms.discovery import import_roots, load_transform
from headgate.transforms.invocation import Outcome, run_transform

_FETCH_POLL_SECONDS = 0.02
_PROGRESS_SECONDS = 0.5


def main(events_fd: int) -> None:
    """Run the attempt and end the process: with code 0 if it succeeded, else 1."""
    events = _Events(events_fd)
    address = read_address(_next_line())
    session = join(address)
    document = JobDocument.from_json(_next_line())
    _end_with_parent()
    _change_directory_and_output(document)
    code = _run(document, address, session, events)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: a thread that user code left running must not keep the attempt alive.
    os._exit(code)


def _next_line() -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        # The build is gone, or has no job for this process.
        os._exit(0)
    return line.decode()


def _end_with_parent() -> None:
    """Kill this process and its children once the other end of its stdin is closed."""
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


def _change_directory_and_output(document: JobDocument) -> None:
    if document.directory is not None:
        os.chdir(document.directory)
    if document.log is not None:
        with Path(document.log).open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
    if document.order.extent is not None:
        sys.stderr.write(f"{document.order.extent}\n")


def _run(document: JobDocument, address: Address, session: Any, events: _Events) -> int:
    """Run the attempt up to its last event; failures of user code end here."""
    bundle = Path(document.bundle)
    attached: JobSession | None = None
    checks = JobChecks()
    try:
        attached = attach(address, session, conf=document.conf, tag=document.tag, bundle=bundle)
        events.send(EventKind.STARTED, pid=os.getpid(), tags=attached.tags)
        # The log gets the traceback of an error below.
        with without_error_log(), _ProgressReport(attached, events):
            outcome = _compute(document, attached, events, checks)
    # SystemExit too: user code that exits has not finished its work.
    except BaseException as error:
        facts = failure_facts(error, bundle)
        sys.stderr.write(facts["traceback"])
        events.send(
            EventKind.FAILED,
            **facts,
            spark_jobs=attached.spark_jobs() if attached else 0,
            checks=checks.to_json(),
        )
        return 1
    events.send(
        EventKind.DONE,
        written=outcome.written,
        replaced=outcome.replaced,
        aborted=outcome.aborted,
        spark_jobs=attached.spark_jobs(),
        checks=checks.to_json(),
    )
    return 0


def _compute(
    document: JobDocument, attached: JobSession, events: _Events, checks: JobChecks
) -> Outcome:
    """Run the transform between the checks of its inputs and those of its outputs."""
    transform = _load(document)
    session = configure(attached.session, transform.options.spark_conf)

    def report(written: Written) -> None:
        events.send(EventKind.WRITTEN, **asdict(written))

    def fetch(directory: Path) -> Path:
        if not directory.is_dir():
            events.send(EventKind.NEEDS, directory=str(directory))
        while not directory.is_dir():
            time.sleep(_FETCH_POLL_SECONDS)
        return directory

    order, files = document.order, document.files
    io = JobIO(session=session, order=order, files=files, fetch=fetch, on_written=report)
    checks.before(session, transform, files)
    outcome = run_transform(
        transform,
        {name: io.input(name) for name in order.inputs},
        {name: io.output(name, transform.outputs[name]) for name in order.outputs},
        TransformContext(
            spark_session=session,
            is_incremental=order.incremental,
            branch=order.branch,
            fallback_branches=order.fallback,
            parameters=order.parameters,
        ),
    )
    checks.after(session, transform, files, outcome.written)
    return outcome


def _load(document: JobDocument) -> Transform:
    sys.path[:0] = [str(root) for root in import_roots(Path(document.bundle))]
    module = importlib.import_module(document.order.module)
    return load_transform(
        module, [parse_dataset_name(target.dataset) for target in document.order.outputs.values()]
    )


class _Events:
    """Writes events to a pipe, one a line, from any thread."""

    def __init__(self, fd: int) -> None:
        # Children of user code must not hold the pipe open after this process has ended.
        os.set_inheritable(fd, False)
        self._pipe = os.fdopen(fd, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, kind: EventKind, **facts: Any) -> None:
        line = json.dumps({"event": kind.value, **facts}, default=str).encode() + b"\n"
        with self._lock:
            self._pipe.write(line)


class _ProgressReport:
    """Sends Spark's progress within the block, whenever it has changed."""

    def __init__(self, attached: JobSession, events: _Events) -> None:
        self._attached = attached
        self._events = events
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        last: StageProgress | None = None
        while not self._ended.wait(_PROGRESS_SECONDS):
            now = self._attached.stage_progress()
            if now and now != last:
                self._events.send(EventKind.PROGRESS, **asdict(now))
            last = now


# The line after a traceback's last frame: frames are indented, and the error itself is not.
_WORKER_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.M)

# Messages of Java's S3 client, deep in a stack whose top may be about a file that cannot be closed.
_S3_MESSAGES = {
    "Unable to load credentials from any of the providers": (
        "Spark has no credentials for the bucket of this store. Set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY where the job runs: a server sends its clients the address of S3, "
        "but no secrets."
    ),
    "Unable to load region from any of the providers": (
        "Spark has no region for the bucket of this store. Set AWS_REGION where the job runs, or "
        "where the store is served."
    ),
}
_S3_DENIED = re.compile(r"S3Exception: (.*Status Code: 403.*)")

# The prefixes of a Java error's message: py4j's, then the class and the status of Iceberg's client.
_PY4J_PREFIX = re.compile(r"^An error occurred while calling \S+\n: ")
_ICEBERG_PREFIX = re.compile(r"^org\.apache\.iceberg\.exceptions\.\w+: (?:Forbidden: )?")


def failure_facts(error: BaseException, bundle: Path) -> dict[str, Any]:
    """Return the facts of a `failed` event; the file is relative to the bundle, None if outside."""
    # Reports the user's own exception; the error that wraps it has the place of the declaration.
    shown = error.__cause__ if isinstance(error, UserCodeFailed) and error.__cause__ else error
    text = "".join(traceback.format_exception(shown))
    file, line = _place_of(shown, text, bundle)
    if file is None and shown is not error:
        file, line = _place_of(error, text, bundle)
    kind, message = _kind_and_message(shown)
    return {"error": kind, "message": message, "file": file, "line": line, "traceback": text}


def _place_of(error: BaseException, text: str, bundle: Path) -> tuple[str | None, int | None]:
    """Return the innermost line of the user's code: in a Python worker, else in this process."""
    if isinstance(error, HeadgateError) and error.facts.get("file") is not None:
        # The error itself has the place of the declaration that failed.
        found = _inside(error.facts["file"], bundle)
        return found, error.facts["line"] if found else None
    # Spark evaluates late: a function of the user's fails in a worker, whose trace arrives as text,
    # while the stack of this process shows only the call that collected the rows.
    if in_worker := _last_line_in(str(error), bundle):
        return in_worker
    if isinstance(error, SyntaxError) and error.filename:
        found = _inside(error.filename, bundle)
        return found, error.lineno if found else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := _inside(frame.filename, bundle):
            return found, frame.lineno
    return _last_line_in(text, bundle) or (None, None)


def _last_line_in(text: str, bundle: Path) -> tuple[str, int] | None:
    """Return the last line of the bundle in a trace, whether it ran here or was shipped."""
    here, name = re.escape(str(bundle)), re.escape(bundle.name)
    shipped = rf'[^"\n]*/{name}(?:\.zip)?'
    pattern = re.compile(rf'File "(?:{here}|{shipped})/([^"\n]+)", line (\d+)')
    if not (found := pattern.findall(text)):
        return None
    file, line = found[-1]
    # A shipped bundle starts where modules are imported, which may be its `src` directory.
    roots = [root for root in (bundle, *import_roots(bundle)) if (root / file).is_file()]
    return str((roots[0] / file).relative_to(bundle)) if roots else file, int(line)


def _inside(filename: str, bundle: Path) -> str | None:
    path = Path(filename)
    return str(path.relative_to(bundle)) if path.is_relative_to(bundle) else None


def _kind_and_message(error: BaseException) -> tuple[str, str]:
    """Return the class of an exception and its message, `KeyError: 'amount'`, without Java's stack.

    The exception of a Python worker is the user's; the one that reports it here is Spark's.
    """
    kind, text = type(error).__name__, str(error)
    if traces := _WORKER_TRACE.findall(text):
        module_and_kind, _, rest = traces[-1].strip().partition(":")
        kind = module_and_kind.rpartition(".")[2]
        return kind, f"{kind}:{rest}" if rest else kind
    if isinstance(error, HeadgateError):
        return kind, error.message
    if found := _find_explanation(text):
        return kind, found
    message = _ICEBERG_PREFIX.sub("", _PY4J_PREFIX.sub("", text))
    is_javas = message != text
    message = message.partition("\n\tat ")[0].partition("\n\nJVM stacktrace:")[0].strip()
    return kind, message if is_javas else f"{kind}: {message}".removesuffix(": ")


def _find_explanation(text: str) -> str | None:
    """Return what Java's message means for the user, where it does not say so itself."""
    if found := next((ours for theirs, ours in _S3_MESSAGES.items() if theirs in text), None):
        return found
    if denied := _S3_DENIED.search(text):
        return f"S3 denies the credentials that Spark has where the job runs: {denied[1]}"
    if failure := find_quoted_failure(text, SPARK_DISKS):
        return failure.message
    return None
