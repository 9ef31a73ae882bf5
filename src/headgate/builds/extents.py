"""How much a job reads, once every input is pinned: what its plan had to leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from headgate.builds.answering import answer
from headgate.builds.attempting import Pinned
from headgate.builds.ledger import Ledger
from headgate.builds.opening import opening_type
from headgate.builds.past import CatalogPast
from headgate.catalog.database import Connection
from headgate.catalog.find import load_transactions
from headgate.catalog.spans import retype_transactions
from headgate.errors import NotIncremental
from headgate.model.fingerprints import on_top_of
from headgate.model.freshness import Decision
from headgate.model.ids import TransactionId
from headgate.model.incrementality import Extent, Incrementality, Span, decide_incremental
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, TransactionType
from headgate.model.past import Answer, Base, Place, Question
from headgate.tables.classify import tip_of


def settle_extent(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> tuple[Decision, dict[str, int]]:
    """The decision with its extent settled, and the snapshots of the tables that it reads.

    Raises where a transform would have to be built in full and says that it must not be.
    """
    if decision.job.spec.declaration.incremental is None:
        return decision, {}
    extent = decision.incremental
    if extent is None or extent.extent is Extent.UNDECIDED:
        decision = _decided_now(ledger, position, decision, pins)
        extent = decision.incremental
    assert extent is not None, "a job that runs was judged"
    if extent.refused:
        raise NotIncremental(
            transform=decision.job.spec.title, reason=extent.reason, broken_by=extent.broken_by
        )
    tips = _tips(ledger, pins)
    reads = tuple(_from_its_tip(span, tips) for span in extent.reads)
    snapshots = {str(p.dataset): tip for n, p in pins.items() if (tip := tips.get(n)) is not None}
    return replace(decision, incremental=replace(extent, reads=reads)), snapshots


def _decided_now(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> Decision:
    """As planning decides it, from what this build has made meanwhile."""
    outputs = ledger.opened.transactions[position]
    answers: dict[Question, Answer] = {}
    while True:
        extent, bases = ledger.parts.database.read(
            partial(_judge, decision=decision, pins=pins, outputs=outputs, answers=answers)
        )
        if not extent.questions:
            break
        answers |= answer(ledger.parts.database, ledger.parts.contents, extent.questions)
    made_from = decision.made_from
    if made_from is not None and extent.extent is Extent.INCREMENTAL:
        made_from = on_top_of(made_from, bases)
    decided = replace(decision, incremental=extent, made_from=made_from)
    type = opening_type(decided)
    if type is not TransactionType.SNAPSHOT:
        # They were opened as if for a full one.
        retype_transactions(
            ledger.parts.database, list(outputs.values()), type, attempt=ledger.attempt(position)
        )
    return decided


def _judge(
    connection: Connection,
    *,
    decision: Decision,
    pins: Mapping[str, Pinned],
    outputs: Mapping[DatasetName, TransactionId],
    answers: Mapping[Question, Answer],
) -> tuple[Incrementality, dict[DatasetName, Base]]:
    opened = load_transactions(connection, outputs.values())
    past = CatalogPast(connection, lambda name: opened[outputs[name]].parent)
    spec = decision.job.spec.declaration.incremental
    assert spec is not None
    bases = {name: past.base(name) for name in outputs}
    places = [
        Place(name=name, dataset=pin.dataset, head=pin.transaction) for name, pin in pins.items()
    ]
    return decide_incremental(spec, places, bases, past, answers), bases


def _tips(ledger: Ledger, pins: Mapping[str, Pinned]) -> dict[str, int | None]:
    """By input, the newest snapshot of each table."""
    tables = {n: p.transaction for n, p in pins.items() if p.kind is DatasetKind.TABLE}
    found = ledger.parts.database.read(lambda c: load_transactions(c, tables.values()))
    tips: dict[str, int | None] = {}
    for name, id in tables.items():
        version = found[id].version
        if version is not None:
            tips[name] = tip_of(ledger.parts.contents.tables.read(version.location).metadata)
    return tips


def _from_its_tip(span: Span, tips: Mapping[str, int | None]) -> Span:
    """Where no row came, nothing lies after what there is, whichever snapshots lead to it."""
    if span.since is None or span.has_new:
        return span
    return replace(span, since_snapshot=tips.get(span.name))
