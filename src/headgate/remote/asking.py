"""How a plan or a build is asked for: as JSON, and in requests of a bearable length."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from headgate.errors import OpenTransactionAlreadyExists, PlanChanged
from headgate.handles.asking import BuildAsked, PlanAsked, check_patience
from headgate.handles.nouns import Json
from headgate.model.names import listed
from headgate.model.options import check_options
from headgate.remote.line import Line

# Of one request that waits for branches which others hold; who waits longer asks again.
_WAIT_SECONDS = 20.0
# Beyond that wait; both together are shorter than a build waits for its client.
_ANSWER_SECONDS = 30.0


def asked_body(targets: Sequence[str], asked: PlanAsked) -> Json:
    """What is asked, as JSON: what was left out is the server's to fill in."""
    check_options(asked, BuildAsked, needed=("branch",))
    given: Json = {name: value for name, value in asked.items() if value is not None}
    if "fallback" in given:
        given["fallback"] = list(listed(given["fallback"]))
    return {**given, "targets": list(listed(targets))}


def start_build(line: Line, targets: Sequence[str], asked: BuildAsked, *, where: str) -> Json:
    """Starts a build whose jobs the server's workers do, or the caller; its record once open."""
    body = asked_body(targets, asked)
    check_patience(asked)
    deadline = time.monotonic() + asked.get("wait_seconds", 0)
    while True:
        rest = min(max(0.0, deadline - time.monotonic()), _WAIT_SECONDS)
        waiting = {"wait_seconds": rest}
        try:
            return _start(line, {**body, **waiting, "where": where}, wait_seconds=rest)
        except (OpenTransactionAlreadyExists, PlanChanged):
            if time.monotonic() >= deadline:
                raise


def _start(line: Line, body: Json, *, wait_seconds: float) -> Json:
    # Named here, so that a request whose reply was lost is the same one when it comes again: else
    # a build would be left that nobody works for, and hold its branches until that is noticed.
    named = {**body, "request_key": secrets.token_urlsafe(32)}
    patience = wait_seconds + _ANSWER_SECONDS
    started: Json = line.ask(
        "POST", "/builds", body=named, again=True, patience_seconds=patience
    ).document
    return started
