"""Verbs that change a store as a whole: names on every dataset, tokens, builds, upkeep."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.catalog.branches import delete_branches, protect_branch
from headgate.catalog.find import list_branches
from headgate.catalog.leftovers import cancel_build
from headgate.catalog.operations import do_once
from headgate.catalog.tokens import create_token, revoke_token
from headgate.errors import NotFound
from headgate.handles.documents import build_json, token_json
from headgate.handles.nouns import Json
from headgate.handles.working import Working
from headgate.model.access import Role, check_patterns
from headgate.model.changes import OperationKey, Receipt
from headgate.model.durations import check_lifetime_seconds
from headgate.model.names import check_branch_name, check_label
from headgate.model.options import member
from headgate.upkeep.cleanup import clean_up
from headgate.upkeep.doctor import examine
from headgate.upkeep.marking import Marking, choose_marking
from headgate.upkeep.terms import Terms, check_older_than


class Changing(Working):
    """What is done to the store rather than to one dataset."""

    def protect(self, branch: str, *, protected: bool = True) -> None:
        """This branch name accepts only builds of clean commits and admins, on every dataset."""
        protect_branch(self.database, branch, actor=self.settings.actor, protected=protected)

    def delete_everywhere(self, branch: str, *, operation: OperationKey | None = None) -> Receipt:
        """Deletes a branch of every dataset that has it, at once."""
        check_branch_name(branch)

        def act() -> Receipt:
            found = [b for b in self.database.read(list_branches) if b.name == branch]
            if not found:
                raise NotFound(f"no dataset has a branch {branch!r}.", branch=branch)
            return delete_branches(
                self.database,
                found,
                actor=self.settings.actor,
                may_write_protected=self.may_write_protected,
                operation=operation,
            )

        return do_once(self.database, operation, act)

    def cancel_build(self, id: str) -> Json:
        """Ends a build that runs, wherever it runs."""
        return build_json(cancel_build(self.database, id, actor=self.settings.actor))

    def create_token(
        self,
        *,
        actor: str,
        role: Role | str,
        branches: Sequence[str] = ("*",),
        lifetime_seconds: int | None = None,
    ) -> Json:
        """A new token under `token`, with what it stands for; shown once and stored nowhere."""
        if lifetime_seconds is not None:
            check_lifetime_seconds(lifetime_seconds)
        secret, record = create_token(
            self.database,
            actor=check_label(actor, what="an actor"),
            role=member(Role, role, what="role"),
            branches=check_patterns(branches),
            lifetime_seconds=lifetime_seconds,
            created_by=self.settings.actor,
        )
        return {"token": secret, **token_json(record)}

    def revoke_token(self, id: str) -> Json:
        """Refused from now on."""
        return token_json(revoke_token(self.database, id))

    def clean_up(
        self, *, older_than_seconds: int, dry_run: bool = False, engine: Marking = Marking.AUTO
    ) -> Json:
        """Condemns what nothing needs and sweeps what was condemned a day before."""
        terms = Terms(
            retain_seconds=self.settings.retain_seconds,
            older_than_seconds=check_older_than(older_than_seconds),
        )
        cleaned = clean_up(
            self.database,
            self.objects,
            terms,
            actor=self.settings.actor,
            dry_run=dry_run,
            mark_manifests=choose_marking(
                engine,
                self.objects,
                self.settings.environ,
                lambda: self.spark(self.settings.builds.branch),
            ),
        )
        if self.settings.lakefs_endpoint is None:
            return cleaned.to_json()
        return cleaned.to_json() | {"staging": self.sweep_staging(dry_run=dry_run)}

    def examine(self, *, deep: bool = False) -> Json:
        """What is wrong with the store, from end to end; changes nothing."""
        return examine(self.settings, deep=deep).to_json()
