"""Reports of jobs to a server: numbered, repeated until accepted, shortened if rejected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headgate.builds.attempt import JobResult
from headgate.client.builds import EventSender
from headgate.errors import HeadgateError, Invalid, Unavailable

FAILED = JobResult(succeeded=False, error={"message": "no such column " + "x" * 10_000})


class _Server:
    """Raises these errors first; then it accepts reports."""

    def __init__(self, *errors: HeadgateError) -> None:
        self._errors = list(errors)
        self.heard: list[dict[str, Any]] = []
        self.done = threading.Event()

    def take(self, said: list[dict[str, Any]]) -> None:
        if self._errors:
            error = self._errors.pop(0)
            if not self._errors and isinstance(error, _Over):
                self.done.set()
            raise error
        self.heard += said
        if any(one["event"] == "ended" for one in said):
            self.done.set()


class _Over(Invalid):
    """The last error."""


def _end(server: _Server, *first: Callable[[EventSender], None]) -> EventSender:
    talk = EventSender(server.take)
    for say in first:
        say(talk)
    talk.end("build/0:1", FAILED, {}, log=None)
    assert server.done.wait(60)
    talk.close()
    return talk


def test_what_a_server_away_did_not_hear_is_said_again_in_order() -> None:
    server = _Server(Unavailable("it is away"))
    talk = _end(server, lambda talk: talk.send("build/0:1", {"event": "written", "rows": 3}))
    assert [(one["event"], one["number"]) for one in server.heard] == [("written", 1), ("ended", 2)]
    assert talk.ended == {"build/0:1"}


def test_end_that_a_server_refuses_is_told_in_short() -> None:
    too_large = Invalid("the document is too large.")
    server = _Server(too_large, too_large)
    _end(server)
    [end] = server.heard
    assert (end["number"], end["succeeded"]) == (1, False)
    assert "too large" in end["error"]["message"] and "no such column" in end["error"]["message"]
    assert len(end["error"]["message"]) < 3000


def test_end_that_is_refused_in_short_too_is_not_said_again() -> None:
    over = Invalid("the build is over.")
    server = _Server(over, over, _Over("the build is over."))
    assert _end(server).ended == {"build/0:1"}
    assert server.heard == []
