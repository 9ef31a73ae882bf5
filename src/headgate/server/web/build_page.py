"""The builds page, and the page of one build: jobs, attempts, logs and errors.

The page of a build also cancels it, or starts its targets again on the server's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from headgate.builds.attempt import job_key
from headgate.catalog.attempts import list_attempts
from headgate.catalog.builds import BuildRecord, JobRecord, cancel_build, list_builds, load_build
from headgate.errors import Invalid
from headgate.model.access import Right, require
from headgate.model.ids import BuildId
from headgate.model.nouns import Attempt
from headgate.server.web import markup
from headgate.server.web.dataset_parts import check_table
from headgate.server.web.page import Act, Page, Section, Visit

if TYPE_CHECKING:
    from headgate.builds.report import BuildOutcome, Watch
    from headgate.server.builds import ServerBuilds


# --- logs of jobs ---------------------------------------------------------------------------

_TAIL_BYTES = 16_384


def read_log_tail(root: Path, build: str, log: str | None) -> str | None:
    """Return the last lines of a job's log; None if it is on another machine or deleted."""
    if log is None:
        return None
    home = (root / ".headgate" / "work" / "builds" / build).resolve()
    path = Path(log).resolve()
    # The build recorded this path: reject any that is outside the build's own directory.
    if not path.is_relative_to(home) or not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace")
    if size > _TAIL_BYTES:
        tail = "…\n" + tail.partition("\n")[2]
    return tail.strip() or None


# --- all builds -----------------------------------------------------------------------------

_PAGE_ROWS = 30
_TARGETS = 3
_LIST_WATCH_SECONDS = 2.0


def builds_page(visit: Visit) -> Page:
    """Return the builds, newest first; the page refreshes while it is open."""
    after = visit.asked("after") or None
    found = visit.store.database.read(lambda c: list_builds(c, limit=_PAGE_ROWS + 1, after=after))
    following = None
    if len(found) > _PAGE_ROWS:
        following = markup.with_query(markup.BUILDS, after=found[_PAGE_ROWS - 1].id)
    body = _list(visit, found[:_PAGE_ROWS]) if found else _nothing()
    return Page(
        title="Builds",
        place=markup.BUILDS,
        sections=(
            Section(key="head", body=markup.heading("Builds", _running(found))),
            Section(key="list", body=markup.join([body, markup.more(following)])),
        ),
        refresh_seconds=_LIST_WATCH_SECONDS,
    )


def _running(found: list[BuildRecord]) -> Markup | None:
    running = sum(build.state == "running" for build in found)
    return (
        markup.tag("p", markup.badge(f"{running} running", "busy"), role="status")
        if running
        else None
    )


def _list(visit: Visit, found: list[BuildRecord]) -> Markup:
    rows = [
        (
            markup.link(markup.short(build.id), markup.build_at(build.id), title=build.id),
            markup.badge(build.state),
            targets(build),
            markup.tag("span", build.branch, class_="chip"),
            markup.moment(build.started_at, visit.now),
            markup.lasted(build.started_at, build.ended_at or visit.now),
            build.actor,
        )
        for build in found
    ]
    headings = ("Build", "State", "Targets", "Branch", "Started", "Took", "By")
    return markup.table(headings, rows, label="Builds")


def targets(build: BuildRecord) -> markup.Child:
    """Return links to the targets of a build; of many, only to the first few."""
    names = list(build.body["targets"])
    shown = [markup.link(name, markup.dataset_at(name, branch=build.branch)) for name in names]
    parts: list[markup.Child] = []
    for at, one in enumerate(shown[:_TARGETS]):
        parts += [", ", one] if at else [one]
    rest = len(names) - _TARGETS
    return [parts, f" and {rest} more"] if rest > 0 else parts


def _nothing() -> Markup:
    return markup.empty(
        "Nothing was built yet.", markup.command("headgate build sales.daily --upstream")
    )


# --- one build ------------------------------------------------------------------------------

_WATCH_SECONDS = 1.0
_ENDED_BADLY = {"failed", "canceled"}

# Starts the targets of a build again, in the visitor's name; returns the new build's id.
Again = Callable[[Visit, BuildRecord], str]


def build_page(visit: Visit, *, can_retry: bool = False) -> Page:
    """Return the page of a build, which refreshes every second until the build has ended."""
    build = visit.store.database.read(lambda c: load_build(c, visit.subject))
    chosen = visit.asked_number("job")
    job = next((job for job in build.jobs if job.ordinal == chosen), None)
    running = build.state == "running"
    return Page(
        title=f"Build {markup.short(build.id)}",
        place=markup.BUILDS,
        sections=(
            Section(key="head", body=_head(visit, build, can_retry=can_retry)),
            Section(key="facts", body=markup.facts(_facts(visit, build))),
            Section(key="jobs", body=_jobs(build)),
            Section(key="job", body=_job(visit, build, job) if job else markup.join(None)),
        ),
        refresh_seconds=_WATCH_SECONDS if running else None,
    )


def acting(again: Again | None) -> Act:
    """Return the actions of the buttons: cancel, and retry if the server has workers."""

    def act(visit: Visit, action: str, _: Mapping[str, str]) -> str:
        build = visit.store.database.read(lambda c: load_build(c, visit.subject))
        require(visit.grant, Right.WRITE, written=[build.branch])
        if action == "cancel":
            cancel_build(visit.store.database, build.id, actor=visit.grant.actor)
            return "The build was canceled."
        if action == "retry" and again is not None:
            return markup.build_at(again(visit, build))
        raise Invalid(f"there is nothing called {action!r} to do here.")

    return act


def _head(visit: Visit, build: BuildRecord, *, can_retry: bool) -> Markup:
    title = ["Build ", markup.tag("span", markup.short(build.id), title=build.id)]
    buttons = markup.tag("div", _buttons(visit, build, can_retry=can_retry), class_="buttons")
    return markup.heading(title, markup.badge(build.state), buttons)


def _buttons(visit: Visit, build: BuildRecord, *, can_retry: bool) -> markup.Child:
    if not visit.may_write(build.branch):
        return None
    if build.state == "running":
        question = "Cancel this build? What it has not committed is aborted."
        return _button("Cancel", "cancel", "danger", ask=question)
    if build.state in _ENDED_BADLY and can_retry:
        return _button("Retry", "retry", "primary")
    return None


def _button(text: str, act: str, tone: str, ask: str | None = None) -> Markup:
    return markup.tag(
        "button", text, type="button", class_=f"button {tone}", data_act=act, data_ask=ask
    )


def _facts(visit: Visit, build: BuildRecord) -> list[tuple[str, markup.Child]]:
    chain = " > ".join([build.branch, *build.body["fallback"]])
    return [
        ("Targets", targets(build)),
        ("Chain", markup.code(chain)),
        ("Started", [markup.moment(build.started_at, visit.now), f" by {build.actor}"]),
        ("Took", markup.lasted(build.started_at, build.ended_at or visit.now)),
    ]


def _jobs(build: BuildRecord) -> Markup:
    if not build.jobs:
        return markup.empty("This build had no jobs.")
    rows = [
        (
            markup.link(", ".join(job.body["outputs"]), markup.build_at(build.id, job=job.ordinal)),
            markup.badge(job.state),
            job.reason,
            progress(job),
            f"{job.attempts}" if job.attempts else "",
            _took(job),
            _error_line(job),
        )
        for job in build.jobs
    ]
    has_failed = any(job.body.get("error") for job in build.jobs)
    last = "Error" if has_failed else ""
    headings = ("Outputs", "State", "Why", "Progress", "Attempts", "Took", last)
    return markup.card("Jobs", markup.table(headings, rows, label="Jobs", numbers=(4,)))


def progress(job: JobRecord) -> markup.Child:
    """Return a job's progress: stages and tasks while Spark works, rows once written."""
    told = job.body.get("progress") or {}
    bar: Markup | None = None
    words: list[str] = []
    if stages := told.get("stages"):
        done, every = stages["tasks_done"], stages["tasks"]
        bar = markup.tag("progress", value=done, max=max(every, 1), aria_label="Tasks")
        words.append(f"stage {stages['done']}/{stages['all']}, {done}/{every} tasks")
    if rows := told.get("rows"):
        words.append(markup.count(rows, "row"))
    if jobs := job.body.get("spark_jobs"):
        words.append(markup.count(jobs, "Spark job"))
    return (
        markup.tag("span", bar, markup.tag("span", ", ".join(words)), class_="chips")
        if words
        else ""
    )


def _took(job: JobRecord) -> str:
    seconds = (job.body.get("progress") or {}).get("seconds")
    return markup.duration(seconds) if seconds is not None else ""


def _error_line(job: JobRecord) -> markup.Child:
    error = job.body.get("error")
    if not error:
        return ""
    where = f"{error['file']}:{error['line']} " if error.get("file") else ""
    return markup.tag(
        "span", markup.code(where) if where else None, error.get("message", ""), class_="error"
    )


def _job(visit: Visit, build: BuildRecord, job: JobRecord) -> Markup:
    key = job_key(build.id, job.ordinal)
    attempts = visit.store.database.read(lambda c: list_attempts(c, key))
    log = read_log_tail(visit.store.settings.root, build.id, job.body.get("log"))
    checks = job.body.get("checks")
    return markup.join(
        [
            _error(job.body.get("error")),
            markup.card(
                ", ".join(job.body["outputs"]),
                _inputs(job),
                _attempts(visit, attempts),
                beside=markup.badge(job.state),
            ),
            markup.card("Checks", check_table(list(checks))) if checks else None,
            markup.card("Log", markup.tag("pre", log, class_="log")) if log else None,
        ]
    )


def _inputs(job: JobRecord) -> Markup:
    rows = [
        (
            markup.link(
                given["dataset"], markup.dataset_at(given["dataset"], branch=given["branch"])
            ),
            given["branch"],
            markup.code(markup.short(given["transaction"]))
            if given["transaction"]
            else "made by this build",
        )
        for given in job.body["inputs"]
    ]
    if not rows:
        return markup.tag("p", "It reads nothing.", class_="hint")
    return markup.table(("Input", "From branch", "Transaction"), rows, label="Inputs")


def _attempts(visit: Visit, attempts: list[Attempt]) -> Markup | None:
    if not attempts:
        return None
    rows = [
        (
            f"{a.ref.epoch}",
            markup.badge(a.state.value),
            markup.moment(a.started_at, visit.now),
            a.actor,
        )
        for a in attempts
    ]
    drawn = markup.table(("Epoch", "State", "Started", "By"), rows, label="Attempts", numbers=(0,))
    return markup.join([markup.tag("h3", "Attempts"), drawn])


def _trace(text: str | None) -> Markup | None:
    """Return the traceback, collapsed: most readers need only the line and the message."""
    if not text:
        return None
    return markup.tag("details", markup.tag("summary", "Traceback"), markup.command(text.strip()))


def _error(error: Mapping[str, Any] | None) -> Markup | None:
    if not error:
        return None
    where = f"{error['file']}:{error['line']}" if error.get("file") else None
    return markup.card(
        ["Error", f" in {where}" if where else ""],
        markup.tag("p", error.get("message", "It failed."), class_="error", role="alert"),
        _trace(error.get("traceback")),
        beside=markup.badge(error["error"], "bad") if error.get("error") else None,
        class_="failed",
    )


# --- retry on the server's workers ----------------------------------------------------------


def again_on(builds: ServerBuilds) -> Again:
    """Return a function that repeats a build in the visitor's name; fresh outputs are skipped."""

    def again(visit: Visit, build: BuildRecord) -> str:
        grant, asked = visit.grant, build.body
        store = visit.store.acting_as(grant.actor, may_write_protected=grant.may_write_protected)

        def work(id: BuildId, watch: Watch) -> BuildOutcome:
            return store.build(
                asked["targets"],
                branch=build.branch,
                fallback=asked["fallback"],
                upstream=asked.get("upstream", False),
                atomic=asked.get("atomic", False),
                parameters=asked.get("parameters", {}),
                watch=watch,
                id=id,
            )

        return builds.start(work)

    return again
