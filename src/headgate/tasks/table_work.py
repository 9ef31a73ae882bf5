"""What a task's tables are to its attempt: a session, and changes to publish with the files."""

from __future__ import annotations

from typing import Any, Protocol

from headgate.tasks.ports import Together


class TableWork(Protocol):
    """The tables of one attempt, opened for it alone."""

    @property
    def session(self) -> Any:
        """The Spark session that the body gets."""
        ...

    def finish(self) -> Together:
        """What was written, ready to be published; nothing can be written after this."""
        ...

    def publish(self, together: Together) -> None:
        """Publishes it alone, where there is no workspace to publish it with."""
        ...

    def close(self) -> None:
        """Ends the session; what was not published is aborted."""
        ...
