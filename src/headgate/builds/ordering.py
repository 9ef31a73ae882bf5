"""The catalog's half of an attempt: what is ordered, and what is staged of what was done."""

from __future__ import annotations

import secrets
from functools import partial

from headgate.builds.attempting import JobResult, JobWork, Pinned
from headgate.builds.orders import InputOrder, JobOrder, OutputOrder
from headgate.builds.parts import Parts
from headgate.catalog.attempts import equip_attempt
from headgate.catalog.find import load_transaction
from headgate.catalog.stage import stage_version
from headgate.errors import VersionExpired
from headgate.files.objects import Digest
from headgate.files.writing import FileEdit, root_of, stage_edit
from headgate.model.ids import TransactionId
from headgate.model.jobspecs import OutputSpec
from headgate.model.nouns import DatasetKind, Transaction
from headgate.model.parameters import effective_parameters
from headgate.tables.classify import tip_of


def make_order(parts: Parts, work: JobWork) -> JobOrder:
    """Gives the attempt a token for what it may touch, and says what is to be done."""
    return _Ordering(parts, work).order()


def settle_outputs(parts: Parts, work: JobWork, result: JobResult) -> None:
    """Files that were written are staged; a table that was not keeps what it showed."""
    for output in work.decision.job.spec.outputs:
        transaction = _load(parts, work.outputs[output.dataset])
        written = output.name in result.written
        if output.kind is DatasetKind.FILES and written:
            _stage_files(parts, work, transaction, output.name, result)
        elif output.kind is DatasetKind.TABLE and not written:
            _keep_shown(parts, work, transaction)


class _Ordering:
    def __init__(self, parts: Parts, work: JobWork) -> None:
        self._parts = parts
        self._work = work

    def order(self) -> JobOrder:
        work, spec = self._work, self._work.decision.job.spec
        extent = work.decision.incremental
        return JobOrder(
            key=work.attempt.key,
            epoch=work.attempt.epoch,
            token=self._equip(),
            module=spec.declaration.module,
            bundle=spec.bundle,
            inputs={name: self._input(name, pin) for name, pin in work.inputs.items()},
            outputs={output.name: self._output(output) for output in spec.outputs},
            branch=work.branch,
            fallback=work.fallback,
            incremental=work.is_incremental,
            extent=str(extent) if extent is not None else None,
            parameters=effective_parameters(spec, work.parameters),
            allowed_run_seconds=spec.declaration.allowed_run_seconds,
        )

    def _equip(self) -> str:
        token = secrets.token_urlsafe(32)
        equip_attempt(
            self._parts.database,
            self._work.attempt,
            token=token,
            scope={
                "branch": self._work.branch,
                "inputs": {
                    str(p.dataset): {"transaction": p.transaction, "branch": p.branch}
                    for p in self._work.inputs.values()
                },
                "outputs": {str(name): id for name, id in self._work.outputs.items()},
            },
        )
        return token

    def _input(self, name: str, pin: Pinned) -> InputOrder:
        span = self._work.added.get(name)
        since = span.since.transaction if span is not None and span.since is not None else None
        is_files = pin.kind is DatasetKind.FILES
        return InputOrder(
            dataset=str(pin.dataset),
            branch=pin.branch,
            transaction=pin.transaction,
            since_snapshot=span.since_snapshot if span is not None else None,
            root=self._root(pin.transaction) if is_files else None,
            since_root=self._root(since) if is_files and since is not None else None,
        )

    def _output(self, output: OutputSpec) -> OutputOrder:
        held = _load(self._parts, self._work.outputs[output.dataset]).version
        is_files = output.kind is DatasetKind.FILES
        snapshot = None
        if not is_files and held is not None and self._work.is_incremental:
            snapshot = tip_of(self._parts.contents.tables.read(held.location).metadata)
        return OutputOrder(
            dataset=str(output.dataset),
            is_files=is_files,
            base_snapshot=snapshot,
            base_root=root_of(held) if is_files and held is not None else None,
        )

    def _root(self, id: TransactionId) -> Digest:
        found = _load(self._parts, id)
        if found.condemned:
            raise VersionExpired(what=f"transaction {id} of {found.dataset}")
        return root_of(found.version)


def _stage_files(
    parts: Parts, work: JobWork, transaction: Transaction, name: str, result: JobResult
) -> None:
    """On top of what the output held, or in place of all of it."""
    trees = parts.contents.trees
    put = result.files[name]
    kept = {entry.path for entry in put}
    before = trees.walk(root_of(transaction.version))
    gone = [e.path for e in before if e.path not in kept] if name in result.replaced else []
    edit = FileEdit(put=put, remove=gone)
    stage_edit(parts.database, trees, transaction, edit, attempt=work.attempt)


def _keep_shown(parts: Parts, work: JobWork, transaction: Transaction) -> None:
    parent = transaction.parent
    if parent is None or transaction.version is not None:
        return
    before = _load(parts, parent)
    if before.version is not None:
        stage_version(
            parts.database, transaction.id, before.version, expected=None, attempt=work.attempt
        )


def _load(parts: Parts, id: TransactionId) -> Transaction:
    return parts.database.read(partial(load_transaction, id=id))
