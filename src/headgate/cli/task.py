"""`headgate task`: check, extract, register, run workspace tasks, and start workers."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
import typer
from rich.console import Console
from rich.status import Status as Spinner

from headgate import connection
from headgate.cli import output
from headgate.cli.format import size_text
from headgate.cli.main import EXIT_CODES
from headgate.conductor import DefinitionState, compare, connect
from headgate.errors import Invalid, NotFound, TaskFailed
from headgate.settings import load_settings
from headgate.tasks import definitions
from headgate.tasks.declare import TaskDefinition
from headgate.tasks.messages import Status
from headgate.tasks.supervisor import Request, RunControl, run_locally

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _TaskProgress:
    """Context manager that shows the steps of a task, and handles SIGTERM and Ctrl-C.

    The first signal lets the attempt finish without another retry; the second ends it.
    """

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._console = console
        self._status: Spinner | None = (
            console.status("starting") if console.is_terminal and not quiet else None
        )
        # Plain values: a signal handler that waits for a lock of its own thread deadlocks.
        self._signals = 0
        self.control = RunControl(watch=self.show, draining=self.draining, sleep=self.sleep)
        self._handlers: dict[int, Any] = {}

    def draining(self) -> bool:
        return self._signals > 0

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or a signal arrives."""
        ends_at = time.monotonic() + seconds
        while not self._signals and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def show(self, line: Mapping[str, Any]) -> None:
        if self._status is None:
            return
        if line["event"] == "step":
            self._status.update(str(line["step"]))
        elif line["event"] == "progress":
            done = f"{line['files']} files, {size_text(line['bytes'])}"
            self._status.update(f"{line['step']}: {done}")
        elif line["event"] == "retry":
            self._status.update(f"attempt {line['attempt']} in {line['delay_seconds']:g} s")

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: object) -> None:
        self._signals += 1
        if self._signals > 1:
            for process in self.control.processes:
                process.stop(TaskFailed(f"ended by {signal.Signals(number).name}"))


app = typer.Typer(
    no_args_is_help=True, help="Check, extract, register, run workspace tasks, and start workers."
)

Module = Annotated[str, typer.Argument(help="package.module or package.module:task")]


@app.command()
def check(module: Module, json: output.JsonOption = False) -> None:
    """Import a task module; show its task definitions and warnings.

    Example: headgate task check songs.render
    """
    found = definitions.load_tasks(definitions.parse_target(module), Path.cwd())
    described = [_described(task) for task in found]
    if json:
        output.show_json(described)
        return
    _warn(found)
    output.show_table(
        ("TASK", "WORKSPACE", "RETRIES", "RESPONSE", "WHERE"),
        [
            (t["task"], t["workspace"] or "-", t["retries"], f"{t['response_seconds']} s", t["at"])
            for t in described
        ],
        empty="no tasks.",
    )


@app.command()
def extract(
    module: Module,
    file: Annotated[Path, typer.Option("--output", "-o", help="JSON file to write.")],
    json: output.JsonOption = False,
) -> None:
    """Write a module's Conductor task definitions: an object, or a list of several.

    Example: headgate task extract songs.render -o taskdef.json
    """
    with output.translate_os_errors(file):
        if file.suffix != ".json" or file.is_dir():
            raise Invalid(
                f"{file} is not a .json file: give --output a path that ends in .json.",
                path=str(file),
            )
    found = definitions.load_tasks(definitions.parse_target(module), Path.cwd())
    made = [definitions.make_taskdef(task) for task in found]
    _warn(found)
    document = made[0] if len(made) == 1 else made
    with output.translate_os_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    if json:
        output.show_json({"file": str(file), "tasks": [task.name for task in found]})
    else:
        output.show_line(str(file))


@app.command()
def run(
    module: Module,
    input: Annotated[
        Path, typer.Option("--input", help="JSON file with the task input; `-` is stdin.")
    ],
    task_key: Annotated[
        str | None,
        typer.Option("--task-key", help="Scheduler key; a newer attempt supersedes an older one."),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", min=0, max=output.MAX_COUNT, help="Retries (default: as declared)."
        ),
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option(
            "--replace",
            metavar="TXN",
            help="Replace this publication of another task on top of the input.",
        ),
    ] = None,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Run a task on this machine with its declared retries, each attempt in its own process.

    Example: headgate task run songs.render --input input.json
    """
    target = definitions.parse_target(module)
    definition = definitions.load_task(target, Path.cwd())
    _warn([definition])
    request = Request(
        definition=definition,
        target=f"{target.module}:{definition.name}",
        directory=Path.cwd(),
        data=_read_input(input),
        key=task_key,
        retries=retries,
        replaces=replaces,
    )
    with connection.open(actor=actor) as hg, _TaskProgress(quiet=json) as progress:
        result = run_locally(hg.task_host, request, progress.control)
    if json:
        output.show_json(result.to_json())
    else:
        attempts = output.count_text(result.attempts, "attempt")
        output.note(f"{definition.name}: {result.outcome.status} after {attempts}")
        if result.outcome.reason:
            output.note(f"{result.outcome.reason} (log: {result.log})")
        if result.outcome.output is not None:
            output.show_line(orjson.dumps(result.outcome.output).decode())
    if result.outcome.status is not Status.COMPLETED:
        raise typer.Exit(1)


@app.command()
def register(
    module: Module,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes only.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Register a module's task definitions in Conductor, and show the changes.

    Example: headgate task register songs.render --dry-run
    """
    found = definitions.load_tasks(definitions.parse_target(module), Path.cwd())
    _warn(found)
    made = {task.name: definitions.make_taskdef(task) for task in found}
    client = connect(load_settings().conductor_url)
    compared = [compare(taskdef, client.find_taskdef(name)) for name, taskdef in made.items()]
    if not json:
        for one in compared:
            output.note(f"{one.name}: {one.state}")
            for field, old, new in one.changes:
                output.note(f"  {field}: {_short(old)} -> {_short(new)}")
    if not dry_run:
        new = [made[one.name] for one in compared if one.state is DefinitionState.NEW]
        if new:
            client.register(new)
        for one in compared:
            if one.state is DefinitionState.CHANGED:
                client.replace(made[one.name])
    if json:
        output.show_json([one.to_json() for one in compared])


@app.command()
def start(
    module: Module,
    slots: Annotated[
        int,
        typer.Option(
            "-j", "--jobs", min=1, max=output.MAX_COUNT, help="Number of concurrent attempts."
        ),
    ] = 1,
    drain: Annotated[
        float | None,
        typer.Option("--drain", min=0, help="Seconds for attempts to finish after a signal."),
    ] = None,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Poll Conductor and run the dispatched tasks, each attempt in its own process.

    SIGTERM or Ctrl-C stops polling; running attempts finish and are reported. Events are JSON
    lines on stderr; with --json, the result is one document on stdout.

    Example: headgate task start songs.render -j 4 --drain 60
    """
    order = {
        "target": str(definitions.parse_target(module)),
        "slots": slots,
        "drain_seconds": drain,
        "actor": actor,
        "json": json,
        "exit_codes": {family.__name__: code for family, code in EXIT_CODES.items()},
    }
    # The worker replaces this process, so that signals reach it directly.
    sys.stdout.flush()
    os.execv(
        sys.executable, [sys.executable, "-m", "headgate.worker", orjson.dumps(order).decode()]
    )


def _short(value: object) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 100 else f"{text[:99]}…"


def _described(task: TaskDefinition) -> dict[str, Any]:
    taskdef = definitions.make_taskdef(task)
    workspace = task.workspace
    shown = None if workspace is None else f"/{workspace.directory}"
    return {
        "task": task.name,
        "owner_email": task.owner_email,
        "workspace": f"{shown} (read-only)" if workspace and workspace.read_only else shown,
        "retries": taskdef["retryCount"],
        "response_seconds": taskdef["responseTimeoutSeconds"],
        "at": f"{task.location.file}:{task.location.line}",
        "warnings": definitions.warnings_of(task),
    }


def _warn(tasks: Sequence[TaskDefinition]) -> None:
    for task in tasks:
        for warning in definitions.warnings_of(task):
            output.note(f"warning: {task.name}: {warning}")


def _read_input(path: Path) -> Any:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            f"input file {path} does not exist: give --input an existing file, or `-`.",
            path=str(path),
        ) from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{path} is not JSON: {error}.", path=str(path)) from error
