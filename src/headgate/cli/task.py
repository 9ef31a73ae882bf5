"""`headgate task`: check, describe, register and do workspace tasks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import orjson
import typer
from rich.console import Console
from rich.status import Status as Spinner

from headgate import connection
from headgate.cli.exit_codes import EXIT_CODES, told_of
from headgate.cli.format import count_text, size_text
from headgate.cli.output import (
    MOST,
    ActorOption,
    JsonOption,
    note,
    show_json,
    show_line,
    show_table,
)
from headgate.conductor import Comparison, Standing, compare
from headgate.errors import Invalid, NotFound
from headgate.settings import Settings, load_settings
from headgate.tasks.declare import TaskDefinition
from headgate.tasks.definitions import (
    load_task,
    load_tasks,
    make_taskdef,
    parse_target,
    warnings_of,
)
from headgate.tasks.messages import Status
from headgate.tasks.supervisor import Hearing, Request, run_locally, stopped

if TYPE_CHECKING:
    from headgate.conductor import ConductorClient


# A task under a person's eyes: live steps on a terminal, and signals that drain.

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 0.1


class Watching:
    """Shows what an attempt does; a SIGTERM or Ctrl-C lets it finish, a second one ends it."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._console = console
        self._status: Spinner | None = (
            console.status("starting") if console.is_terminal and not quiet else None
        )
        # Plain values: a handler that waits for a lock of its own thread would wait for ever.
        self._signals = 0
        self._hearing: Hearing | None = None
        self._before: dict[int, Any] = {}

    def draining(self) -> bool:
        return self._signals > 0

    def sleep(self, seconds: float) -> None:
        """Waits, unless it is time to leave."""
        ends_at = time.monotonic() + seconds
        while not self._signals and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def on_second_signal(self, hearing: Hearing) -> None:
        """What is to be ended by a second signal."""
        self._hearing = hearing

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
        self._before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: object) -> None:
        self._signals += 1
        if self._signals > 1 and self._hearing is not None:
            for process in self._hearing.processes:
                process.stop(stopped(f"ended by {signal.Signals(number).name}"))


# So much of a value is shown of a difference.
_SHOWN = 100

app = typer.Typer(
    no_args_is_help=True, help="Check, extract, register, run and serve workspace tasks."
)

Module = Annotated[str, typer.Argument(help="package.module or package.module:task")]


@app.command()
def check(module: Module, json: JsonOption = False) -> None:
    """Import a task module and say what is declared in it, and what may surprise.

    Example: headgate task check songs.render
    """
    found = load_tasks(parse_target(module), Path.cwd())
    told = [_described(task) for task in found]
    if json:
        show_json(told)
        return
    for task in told:
        for warning in task["warnings"]:
            note(f"warning: {task['task']}: {warning}")
    show_table(
        ("TASK", "WORKSPACE", "RETRIES", "RESPONSE", "WHERE"),
        [
            (t["task"], t["workspace"] or "-", t["retries"], f"{t['response_seconds']} s", t["at"])
            for t in told
        ],
        empty="no task.",
    )


@app.command()
def extract(
    module: Module,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .json file to write.")],
    json: JsonOption = False,
) -> None:
    """Write the Conductor task definitions of a module: one as an object, several as a list.

    Example: headgate task extract songs.render -o taskdef.json
    """
    with told_of(output):
        if output.suffix != ".json" or output.is_dir():
            raise Invalid(f"{output} is no .json file to write to.", path=str(output))
    found = load_tasks(parse_target(module), Path.cwd())
    made = [make_taskdef(task) for task in found]
    _warn(found)
    document = made[0] if len(made) == 1 else made
    with told_of(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    if json:
        show_json({"file": str(output), "tasks": [task.name for task in found]})
    else:
        show_line(str(output))


@app.command()
def run(
    module: Module,
    input: Annotated[Path, typer.Option("--input", help="The task's input, JSON; - is stdin.")],
    task_key: Annotated[
        str | None,
        typer.Option("--task-key", help="A scheduler's key: a newer attempt replaces an older."),
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", min=0, max=MOST, help="Instead of those declared.")
    ] = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Do a task here, with the retries that it declares, each attempt in its own process.

    Example: headgate task run songs.render --input input.json
    """
    target = parse_target(module)
    definition = load_task(target, Path.cwd())
    _warn([definition])
    request = Request(
        definition=definition,
        target=f"{target.module}:{definition.name}",
        directory=Path.cwd(),
        data=_read_input(input),
        key=task_key,
        retries=retries,
    )
    with connection.open(actor=actor) as hg, Watching(quiet=json) as watching:
        hearing = Hearing(watch=watching.show, draining=watching.draining, sleep=watching.sleep)
        watching.on_second_signal(hearing)
        result = run_locally(hg.task_place, request, hearing)
    if json:
        show_json(result.to_json())
    else:
        tries = count_text(result.attempts, "attempt")
        note(f"{definition.name}: {result.outcome.status} after {tries}")
        if result.outcome.reason:
            note(f"{result.outcome.reason} (log: {result.log})")
        if result.outcome.output is not None:
            show_line(orjson.dumps(result.outcome.output).decode())
    if result.outcome.status is not Status.COMPLETED:
        raise typer.Exit(1)


@app.command()
def register(
    module: Module,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show how a module's task definitions differ from Conductor's, then make them alike.

    Example: headgate task register songs.render --dry-run
    """
    found = load_tasks(parse_target(module), Path.cwd())
    _warn(found)
    made = {task.name: make_taskdef(task) for task in found}
    client = connect(load_settings())
    compared = [compare(taskdef, client.find_taskdef(name)) for name, taskdef in made.items()]
    if not json:
        _show_differences(compared)
    if not dry_run:
        new = [made[one.name] for one in compared if one.standing is Standing.NEW]
        if new:
            client.register(new)
        for one in compared:
            if one.standing is Standing.CHANGED:
                client.replace(made[one.name])
    if json:
        show_json([one.to_json() for one in compared])


@app.command()
def start(
    module: Module,
    slots: Annotated[
        int, typer.Option("-j", "--jobs", min=1, max=MOST, help="Attempts at once.")
    ] = 1,
    drain: Annotated[
        float | None,
        typer.Option("--drain", min=0, help="Seconds for attempts to finish after a signal."),
    ] = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Poll Conductor and do what it dispatches, each attempt in its own process.

    SIGTERM or Ctrl-C stops polling; attempts under way finish and are reported. What happens is
    told as lines of JSON on stderr; with --json, how it ended is one document on stdout.

    Example: headgate task start songs.render -j 4 --drain 60
    """
    order = {
        "target": str(parse_target(module)),
        "slots": slots,
        "drain_seconds": drain,
        "actor": actor,
        "json": json,
        "exit_codes": {family.__name__: code for family, code in EXIT_CODES.items()},
    }
    # The worker takes this process's place, so that signals reach it directly.
    sys.stdout.flush()
    os.execv(
        sys.executable, [sys.executable, "-m", "headgate.worker", orjson.dumps(order).decode()]
    )


def connect(settings: Settings) -> ConductorClient:
    """The configured Conductor."""
    from headgate.conductor import ConductorClient  # noqa: PLC0415  (optional and slow: its client)

    if settings.conductor_url is None:
        raise Invalid(
            "no Conductor is configured: set [conductor] url in headgate.toml, or "
            "HEADGATE_CONDUCTOR_URL."
        )
    return ConductorClient(settings.conductor_url)


def _show_differences(compared: list[Comparison]) -> None:
    for one in compared:
        note(f"{one.name}: {one.standing}")
        for field, old, new in one.changes:
            note(f"  {field}: {_short(old)} -> {_short(new)}")


def _short(value: object) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _described(task: TaskDefinition) -> dict[str, Any]:
    taskdef = make_taskdef(task)
    workspace = task.workspace
    shown = None if workspace is None else f"/{workspace.directory}"
    return {
        "task": task.name,
        "owner_email": task.owner_email,
        "workspace": f"{shown} (read-only)" if workspace and workspace.read_only else shown,
        "retries": taskdef["retryCount"],
        "response_seconds": taskdef["responseTimeoutSeconds"],
        "at": f"{task.place.file}:{task.place.line}",
        "warnings": warnings_of(task),
    }


def _warn(tasks: list[TaskDefinition] | tuple[TaskDefinition, ...]) -> None:
    for task in tasks:
        for warning in warnings_of(task):
            note(f"warning: {task.name}: {warning}")


def _read_input(path: Path) -> Any:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}.", path=str(path)) from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{path} is not JSON: {error}.", path=str(path)) from error
