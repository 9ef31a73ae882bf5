"""What a client's jobs have to say to the server, in order, each thing heard once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headgate.builds.attempting import JobResult
from headgate.errors import HeadgateError, Unavailable
from headgate.handles.nouns import Json

_MOST_AT_ONCE = 200
_AGAIN_SECONDS = 0.5
# Of an error's words, as many as anybody reads.
_SHORT = 2000
# Of what a job's process reports, what others want to see.
_TOLD = {
    "progress": ("stages_done", "stages", "tasks_done", "tasks"),
    "written": ("rows",),
}


class Talk:
    """Numbers what each attempt says, and repeats it until the server has heard it."""

    def __init__(self, send: Callable[[list[Json]], object]) -> None:
        self._send = send
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # Attempts whose end has been heard.
        self.ended: set[str] = set()
        self._thread = threading.Thread(target=self._talk, name="headgate-talk", daemon=True)
        self._thread.start()

    def tell(self, attempt: str, event: Mapping[str, Any]) -> None:
        """Something that a job's process reported."""
        kind = str(event["event"])
        if kind in _TOLD:
            self._say(attempt, kind, {name: event.get(name) or 0 for name in _TOLD[kind]})

    def end(
        self, attempt: str, result: JobResult, files: Mapping[str, str], *, log: str | None
    ) -> None:
        """How an attempt ended; nothing is said of it afterwards."""
        self._say(
            attempt,
            "ended",
            {
                "succeeded": result.succeeded,
                "aborted": result.aborted,
                "written": list(result.written),
                "replaced": list(result.replaced),
                "files": dict(files),
                "rows": result.rows,
                "spark_jobs": result.spark_jobs,
                "checks": [dict(check) for check in result.checks],
                "error": dict(result.error) if result.error is not None else None,
                "log": log,
            },
        )

    def close(self) -> None:
        """Says nothing any more."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join()

    def _say(self, attempt: str, kind: str, facts: Mapping[str, Any]) -> None:
        with self._lock:
            number = self._numbers[attempt] = self._numbers.get(attempt, 0) + 1
            said = {"attempt": attempt, "number": number, "event": kind, **facts}
            self._waiting.put(said)

    def _talk(self) -> None:
        while (first := self._waiting.get()) is not None and not self._closed.is_set():
            said = [first]
            while len(said) < _MOST_AT_ONCE and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._closed.set()
                    break
                said.append(more)
            self._until_heard(said)

    def _until_heard(self, said: list[Json]) -> None:
        """Says it until it is heard; what is refused is said plainly, so that no number lacks."""
        refused = self._say_all(said)
        if refused is not None:
            for one in said:
                if self._say_all([one]) is not None:
                    # Refused once more, the client has no say here any more: it hears so as well.
                    self._say_all([_plainly(one, refused)])
        self.ended |= {one["attempt"] for one in said if one["event"] == "ended"}

    def _say_all(self, said: list[Json]) -> HeadgateError | None:
        while not self._closed.is_set():
            try:
                self._send(said)
                return None
            except Unavailable:
                self._closed.wait(_AGAIN_SECONDS)
            except HeadgateError as refused:
                return refused
        return None


def _plainly(said: Json, refused: HeadgateError) -> Json:
    """The same place in the order of what an attempt says, with nothing that could be wrong."""
    place = {"attempt": said["attempt"], "number": said["number"]}
    if said["event"] != "ended":
        return {**place, "event": "written", "rows": 0}
    told = str((said["error"] or {}).get("message", "that it succeeded"))[:_SHORT]
    why = f"the server did not take what the job reported: {refused.message} It said: {told}"
    return {**place, "event": "ended", "succeeded": False, "error": {"message": why}}
