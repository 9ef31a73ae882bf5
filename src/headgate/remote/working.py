"""Verbs on workspace tasks of a served store: they are done here, and published there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headgate.errors import Invalid
from headgate.handles.working import Working
from headgate.model.access import Grant, Role, allow
from headgate.remote.line import Line

if TYPE_CHECKING:
    from headgate.tasks.inputs import WorkspaceRef
    from headgate.tasks.ports import Attempts, ServerAddress, WorkspaceStore


class RemoteWorking(Working):
    """What tasks need of a store, over the line to its server."""

    line: Line
    role: Role

    @property
    def _server(self) -> ServerAddress:
        from headgate.tasks.ports import ServerAddress  # noqa: PLC0415  (optional: pydantic)

        return ServerAddress(url=self.line.url, token=self.settings.token)

    @cached_property
    def task_attempts(self) -> Attempts:
        from headgate.remote.tasking import RemoteAttempts  # noqa: PLC0415  (optional: pydantic)

        # Whose token can begin no attempt at all must not take work off anybody's queue.
        allow(Grant(actor=self.settings.actor, role=self.role), "dispatch_attempt")
        return RemoteAttempts(self.line)

    def workspaces(self, workspace: WorkspaceRef) -> WorkspaceStore:
        if "." not in workspace.repository:
            raise Invalid(
                f"{workspace.repository!r} is a repository of lakeFS, and what is published there "
                "is kept in the catalog itself: run the task where the store is, with HEADGATE_URL "
                "unset.",
                repository=workspace.repository,
            )
        return self._files_workspaces

    @cached_property
    def _files_workspaces(self) -> WorkspaceStore:
        from headgate.files.cache import ContentCache  # noqa: PLC0415  (with the next)
        from headgate.remote.tasking import RemoteWorkspaces  # noqa: PLC0415  (optional: pydantic)

        return RemoteWorkspaces(self.line, ContentCache(self.settings.cache / "contents"))

    def sweep_staging(self, *, dry_run: bool = False) -> list[str]:
        """The server's cleanup does it, and says so in its document."""
        return []
