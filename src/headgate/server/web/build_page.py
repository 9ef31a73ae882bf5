"""The builds page, and the page of one build: jobs, attempts, logs and errors.

The page of a build also cancels it, or starts its targets again on the server's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from headgate.builds.attempt import read_log
from headgate.builds.plan import BuildOptions
from headgate.builds.report import explain_job, hold_text
from headgate.errors import Invalid
from headgate.model.access import Right, may_write, require
from headgate.model.ids import BuildId
from headgate.model.nouns import Attempt
from headgate.server.web import markup
from headgate.server.web.dataset_parts import check_table, checks_badge
from headgate.server.web.page import (
    Act,
    DatasetLinks,
    Page,
    Visit,
    build_table,
    lasted,
    split_page,
    targets,
)
from headgate.store.documents import Json, logic_text, to_instant

if TYPE_CHECKING:
    from headgate.builds.report import BuildOutcome, Watch
    from headgate.server.builds import ServerBuilds


_TAIL_BYTES = 16_384


def read_log_tail(root: Path, build: str, log: str | None) -> str | None:
    """Return the last lines of a job's log; None if it is on another machine or deleted."""
    home = root / ".headgate" / "work" / "builds" / build
    tail, is_cut = read_log(home, log, most_bytes=_TAIL_BYTES) or ("", False)
    return ("…\n" if is_cut else "") + tail.strip() or None


_PAGE_ROWS = 30
_LIST_WATCH_SECONDS = 2.0


def builds_page(visit: Visit) -> Page:
    """Return the builds, newest first; the page refreshes while it is open."""
    found = visit.store.builds(limit=_PAGE_ROWS + 1, after=visit.param("after") or None)
    shown, steps = split_page(visit, markup.BUILDS, found, _PAGE_ROWS, lambda last: last["build"])
    hint = markup.command("headgate build sales.daily --upstream")
    body = build_table(visit, shown) if shown else markup.empty("Nothing was built yet.", hint)
    return Page(
        title="Builds",
        place=markup.BUILDS,
        sections={
            "head": markup.heading("Builds", _running(found)),
            "list": markup.join([body, steps]),
        },
        refresh_seconds=_LIST_WATCH_SECONDS,
    )


def _running(found: Sequence[Json]) -> Markup | None:
    running = sum(build["state"] == "running" for build in found)
    badge = markup.badge(f"{running} running", "busy")
    return markup.tag("p", badge, role="status") if running else None


_WATCH_SECONDS = 1.0
_ENDED_BADLY = {"failed", "canceled"}

# Builds targets again, in the visitor's name; returns the new build's id.
Retry = Callable[[Visit, Sequence[str], BuildOptions], str]


def build_page(visit: Visit, *, can_retry: bool = False) -> Page:
    """Return the page of a build, which refreshes every second until the build has ended."""
    build = visit.store.build_record(visit.subject)
    chosen = visit.int_param("job")
    return Page(
        title=f"Build {markup.short(build['build'])}",
        place=markup.BUILDS,
        sections={
            "head": _head(visit, build, can_retry=can_retry),
            "facts": markup.facts(_facts(visit, build)),
            # Above the table, which may be long: so it is in sight.
            "job": markup.join(None if chosen is None else _job(visit, build, chosen)),
            "jobs": _jobs(build, chosen),
        },
        refresh_seconds=_WATCH_SECONDS if build["state"] == "running" else None,
    )


def build_actions(retry: Retry | None) -> Act:
    """Return the actions of the buttons: cancel, and retry if the server has workers."""

    def act(visit: Visit, action: str, _: Mapping[str, str]) -> str:
        targets, options = visit.store.overview.build_request(visit.subject)
        require(visit.grant, Right.WRITE, written=[options["branch"]])
        if action == "cancel":
            visit.store.cancel_build(visit.subject)
            return "The build was canceled."
        if action == "retry" and retry is not None:
            return markup.build_at(retry(visit, targets, options))
        raise Invalid(f"there is nothing called {action!r} to do here.")

    return act


def _head(visit: Visit, build: Json, *, can_retry: bool) -> Markup:
    id = build["build"]
    title = ["Build ", markup.tag("span", markup.short(id), title=id)]
    buttons = markup.tag("div", _buttons(visit, build, can_retry=can_retry), class_="buttons")
    phases = {job.get("phase") for job in build["jobs"]} - {None}
    starting = [markup.badge(phase, "busy") for phase in phases if build["state"] == "running"]
    state = markup.tag(
        "span", markup.badge(build["state"]), starting, class_="chips", role="status"
    )
    return markup.heading(title, state, buttons)


def _buttons(visit: Visit, build: Json, *, can_retry: bool) -> markup.Child:
    # Whether to show buttons; each action is checked again.
    if not may_write(visit.grant, build["branch"]):
        return None
    if build["state"] == "running":
        question = "Cancel this build? Its uncommitted transactions are aborted."
        return _button("Cancel", "cancel", "danger", ask=question)
    if build["state"] in _ENDED_BADLY and can_retry:
        return _button("Retry", "retry", "primary")
    return None


def _button(text: str, act: str, tone: str, ask: str | None = None) -> Markup:
    return markup.tag(
        "button", text, type="button", class_=f"button {tone}", data_act=act, data_ask=ask
    )


def _facts(visit: Visit, build: Json) -> list[tuple[str, markup.Child]]:
    started = markup.moment(to_instant(build["started_at"]), visit.now)
    return [
        ("Targets", targets(build, DatasetLinks(visit, build["targets"]))),
        ("Chain", markup.code(" > ".join([build["branch"], *build["fallback"]]))),
        ("Started", [started, f" by {build['actor']}"]),
        ("Took", lasted(visit, build)),
    ]


def _jobs(build: Json, chosen: int | None) -> Markup:
    jobs = build["jobs"]
    if not jobs:
        return markup.empty("This build had no jobs.")
    rows = [
        (
            markup.link(
                ", ".join(job["outputs"]),
                markup.build_at(build["build"], job=position),
                aria_current="true" if position == chosen else None,
            ),
            [_state(build, job), " ", _failed_checks(job)],
            _why(job),
            [progress(job), _error_line(job)],
            f"{job['attempts']}" if job["attempts"] else "",
            _took(job),
        )
        for position, job in enumerate(jobs)
    ]
    headings = ("Outputs", "State", "Why", "Progress", "Attempts", "Took")
    return markup.card("Jobs", markup.table(headings, rows, label="Jobs", numbers=(4,)))


def _state(build: Json, job: Json) -> Markup:
    """Return the state of a job; while it waits for Spark, that."""
    phase = job.get("phase") if build["state"] == "running" else None
    return markup.badge(phase, "busy") if phase else markup.badge(job["state"])


def _failed_checks(job: Json) -> markup.Child:
    """Return the count of failed checks, also of those that only warn; None if all passed."""
    checks = job.get("checks") or ()
    return checks_badge(checks) if any(not check["passed"] for check in checks) else None


def _why(job: Json) -> markup.Child:
    held = job.get("held")
    hint = markup.tag("div", hold_text(held), class_="hint") if held else None
    return [markup.tag("span", job["reason"], class_="whole"), hint]


def progress(job: Json) -> markup.Child:
    """Return a job's progress: stages and tasks while Spark works, rows once written."""
    found = job.get("progress") or {}
    bar: Markup | None = None
    words: list[str] = []
    if stages := found.get("stages"):
        done, every = stages["tasks_done"], stages["tasks"]
        bar = markup.tag("progress", value=done, max=max(every, 1), aria_label="Tasks")
        words.append(f"stage {stages['done']}/{stages['all']}, {done}/{every} tasks")
    if rows := found.get("rows"):
        words.append(markup.count(rows, "row"))
    if jobs := job.get("spark_jobs"):
        words.append(markup.count(jobs, "Spark job"))
    return markup.chips(bar, markup.tag("span", ", ".join(words))) if words else ""


def _took(job: Json) -> markup.Child:
    seconds = (job.get("progress") or {}).get("seconds")
    if seconds is None:
        return ""
    return markup.tag("span", markup.duration(seconds), class_="whole")


def _error_line(job: Json) -> markup.Child:
    error = job.get("error")
    if not error:
        return ""
    where = f"{error['file']}:{error['line']} " if error.get("file") else ""
    message = error.get("message", "")
    # The first lines: the detail of the job has all of it.
    return markup.tag("div", markup.code(where) if where else None, message, class_="error brief")


def _job(visit: Visit, build: Json, position: int) -> Markup | None:
    if position >= len(build["jobs"]):
        return None
    id, job = build["build"], build["jobs"][position]
    log = read_log_tail(visit.store.settings.root, id, job.get("log"))
    checks = job.get("checks")
    return markup.join(
        [
            markup.card(
                ", ".join(job["outputs"]),
                _error(job.get("error")),
                markup.facts([("Logic", logic_text(job))]),
                [markup.tag("p", one, class_="hint") for one in explain_job(job)],
                _inputs(visit, job),
                _attempts(visit, visit.store.overview.attempts(id, position)),
                beside=markup.chips(
                    _state(build, job), markup.link("Close", markup.build_at(id), class_="button")
                ),
            ),
            markup.card("Checks", check_table(list(checks))) if checks else None,
            markup.card(
                "Log",
                markup.tag("pre", log, class_="log", tabindex="0", role="region", aria_label="Log"),
            )
            if log
            else None,
        ]
    )


def _inputs(visit: Visit, job: Json) -> Markup:
    links = DatasetLinks(visit, (given["dataset"] for given in job["inputs"]))
    rows = [
        (
            links(given["dataset"], given["branch"]),
            given["branch"],
            markup.code(markup.short(given["transaction"]))
            if given["transaction"]
            else "made by this build",
        )
        for given in job["inputs"]
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


def _error(error: Json | None) -> Markup | None:
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


def retry_on(builds: ServerBuilds) -> Retry:
    """Return a function that repeats a build in the visitor's name; fresh outputs are skipped."""

    def retry(visit: Visit, targets: Sequence[str], options: BuildOptions) -> str:
        def work(id: BuildId, watch: Watch) -> BuildOutcome:
            return visit.store.build(targets, watch=watch, id=id, **options)

        return builds.start(work)

    return retry
