"""Verbs on workspace tasks: where they are done, and where their workspaces live."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.handles.parts import Verbs
from headgate.lakefs.connecting import connect

if TYPE_CHECKING:
    from headgate.tasks.inputs import WorkspaceRef
    from headgate.tasks.local import Place
    from headgate.tasks.ports import Attempts, Identity, ServerAddress, WorkspaceStore
    from headgate.tasks.table_work import TableWork
    from headgate.tasks.tables import TableSpec


class Working(Verbs):
    """What tasks need of a store."""

    @cached_property
    def task_place(self) -> Place:
        """Where this store's tasks are done on this machine."""
        from headgate.tasks.local import Place  # noqa: PLC0415  (optional: pydantic)

        settings = self.settings
        return Place(
            attempts=self.task_attempts,
            store=settings.root,
            root=settings.tasks_root or settings.root / ".headgate" / "tasks",
            actor=settings.actor,
            server=self._server,
        )

    @property
    def _server(self) -> ServerAddress | None:
        """Who serves this store to this process; a local one is served by nobody."""
        return None

    @cached_property
    def task_attempts(self) -> Attempts:
        """Who mints the epochs of tasks and knows which attempt is the newest."""
        from headgate.tasks.catalog_attempts import (  # noqa: PLC0415  (with the one above)
            CatalogAttempts,
        )

        return CatalogAttempts(self.database, self.settings.actor)

    @abstractmethod
    def task_tables(
        self, spec: TableSpec, workspace: WorkspaceRef, identity: Identity
    ) -> TableWork:
        """Opens a task's tables to one attempt, with a Spark session for them."""

    def workspaces(self, workspace: WorkspaceRef) -> WorkspaceStore:
        """Where a task's workspace lives: a dataset's name has a dot, a repository's has none."""
        return self._files_workspaces if "." in workspace.repository else self._lakefs_workspaces

    @cached_property
    def _lakefs_workspaces(self) -> WorkspaceStore:
        lakefs = connect(self.settings)
        from headgate.files.cache import ContentCache  # noqa: PLC0415  (with the next)
        from headgate.tasks.lakefs_store import (  # noqa: PLC0415  (optional: pydantic, its SDK)
            LakeFSWorkspaces,
        )

        return LakeFSWorkspaces(
            self.database, lakefs, ContentCache(self.settings.cache / "contents")
        )

    def sweep_staging(self, *, dry_run: bool = False) -> list[str]:
        """Removes staging branches that dead attempts left in lakeFS, where one is configured."""
        if self.settings.lakefs_endpoint is None:
            return []
        lakefs = connect(self.settings)
        from headgate.tasks.lakefs_sweeping import (  # noqa: PLC0415  (optional: its SDK)
            sweep_staging,
        )

        return sweep_staging(self.database, lakefs, dry_run=dry_run)

    @cached_property
    def _files_workspaces(self) -> WorkspaceStore:
        from headgate.files.cache import ContentCache  # noqa: PLC0415  (with the next)
        from headgate.tasks.files_store import (  # noqa: PLC0415  (optional: pydantic)
            FilesWorkspaces,
        )

        cache = ContentCache(self.settings.cache / "contents")
        return FilesWorkspaces(self.database, self.trees, cache)
