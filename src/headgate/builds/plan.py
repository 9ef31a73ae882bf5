"""Plans: what a build would do, read from the catalog and decided by pure rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from headgate.attempts import Contents
from headgate.catalog.branches import list_protected
from headgate.catalog.builds import find_adoptable_by_key
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.jobspecs import Pointer, find_pointers
from headgate.catalog.merge_base import find_span
from headgate.catalog.records import (
    branches_named,
    branches_of,
    find_datasets,
    find_transaction,
    load_transaction,
    load_transactions,
)
from headgate.errors import HeadgateError
from headgate.files.publication import root_of
from headgate.files.tree import ChangeKind
from headgate.model.ancestry import OutputPlace, make_chain, output_place, require_compatible
from headgate.model.changes import Provenance
from headgate.model.freshness import (
    Candidate,
    Decided,
    Decision,
    Facts,
    Pin,
    View,
    check_parameters,
    decide,
    fingerprint_from_json,
)
from headgate.model.ids import BranchId, BuildId, ContentId, DatasetId, JobSpecId, TransactionId
from headgate.model.incrementality import (
    FIRST_SEMANTIC_VERSION,
    Answer,
    Answers,
    Base,
    Change,
    LastBuild,
    Question,
    ReadAt,
)
from headgate.model.job_graph import Removed, compile_graph
from headgate.model.jobspecs import InputSpec, JobSpec, jobspec_from_json
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    Transaction,
    TransactionState,
    TransactionType,
)
from headgate.tables.classify import snapshots_since, tip_of
from headgate.tables.shape import Json, Metadata

# What a built transaction says of itself, for people and for later builds.

# Who says that the code was what computed it. Where the store's own side did, nobody has to.
ON_WORD_OF = "on_word_of"


def provenance_of(
    build: BuildId,
    decision: Decision,
    inputs: Sequence[Mapping[str, Any]],
    *,
    adopted_from: Transaction | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
    snapshots: Mapping[str, int] | None = None,
    on_word_of: str | None = None,
) -> Provenance:
    """What a built transaction says of itself; freshness and adoption compare its keys."""
    made_from = decision.made_from
    assert made_from is not None, "a job is committed only once all its inputs are known"
    source = decision.job.spec.source
    facts: dict[str, Any] = {
        "build": build,
        "job": decision.job.spec.title,
        "jobspec_branch": decision.job.jobspec_branch,
        "commit": source.commit,
        "clean": source.clean,
        "fingerprint": made_from.to_json(),
        "inputs": list(inputs),
    }
    if adopted_from is not None:
        facts["adopted_from"] = {
            "transaction": adopted_from.id,
            "branch": adopted_from.branch,
        }
        on_word_of = adopted_from.provenance.get(ON_WORD_OF)
    if on_word_of is not None:
        facts[ON_WORD_OF] = on_word_of
    if decision.incremental is not None:
        facts["incremental"] = {
            **decision.incremental.to_json(),
            "snapshots": dict(snapshots or {}),
        }
    if checks:
        facts["checks"] = list(checks)
    return Provenance(
        inputs_key=made_from.inputs_key,
        build_key=made_from.build_key,
        adoptable=source.clean,
        facts=facts,
    )


def pins_of(
    decision: Decision, new: Mapping[DatasetName, TransactionId]
) -> list[dict[str, str | None]]:
    """What an adopted job reads: views as planned, or what this very build adopts."""
    return [
        {
            "dataset": str(given.dataset),
            "branch": given.branch,
            "transaction": given.transaction or new.get(given.dataset),
        }
        for given in decision.inputs
    ]


# What was built before, read from the catalog: bases of outputs, histories of inputs.

# The transaction on which a new one of this output would stand.
FindBase = Callable[[DatasetName], TransactionId | None]


class CatalogPast:
    """Asks the catalog, once for each output; see `model.freshness.Past`."""

    def __init__(self, connection: Connection, find_base: FindBase) -> None:
        self._connection = connection
        self._find_base = find_base
        self._bases: dict[DatasetName, Base] = {}

    def base(self, output: DatasetName, /) -> Base:
        if output not in self._bases:
            self._bases[output] = load_base(self._connection, self._find_base(output))
        return self._bases[output]

    def since(self, last: TransactionId, head: TransactionId, /) -> tuple[Change, ...] | None:
        found = find_span(self._connection, last, head)
        if found is None:
            return None
        return tuple(
            Change(
                transaction=step.transaction,
                number=step.depth + 1,
                type=step.type,
                changes_content=step.before != step.after,
            )
            for step in found
        )


def load_base(connection: Connection, id: TransactionId | None) -> Base:
    """What a transaction holds, and the newest build that it holds the result of."""
    if id is None:
        return Base()
    top = load_transaction(connection, id)
    maker = find_maker(connection, top)
    last = _last_build(maker)
    return Base(
        transaction=top.id,
        number=top.depth + 1,
        content=_content(top),
        last=last,
        foreign=maker.id if last is None and _content(maker) is not None else None,
    )


def find_maker(connection: Connection, top: Transaction) -> Transaction:
    """The transaction that made what this one shows: a build's, or the first with that content.

    Compaction and properties leave a build's result as it is, however many of them there were.
    """
    here = top
    while not is_built(here) and here.parent is not None:
        below = load_transaction(connection, here.parent)
        if _content(below) != _content(here):
            break
        here = below
    return here


def is_built(transaction: Transaction) -> bool:
    """Whether a build made it, and it shows something."""
    return "fingerprint" in transaction.provenance and transaction.version is not None


def _last_build(transaction: Transaction) -> LastBuild | None:
    if not is_built(transaction):
        return None
    facts = transaction.provenance
    incremental = facts.get("incremental") or {}
    snapshots = incremental.get("snapshots") or {}
    return LastBuild(
        transaction=transaction.id,
        semantic_version=incremental.get("semantic_version", FIRST_SEMANTIC_VERSION),
        read={
            parse_dataset_name(given["dataset"]): ReadAt(
                transaction=TransactionId(given["transaction"]),
                snapshot=snapshots.get(given["dataset"]),
            )
            for given in facts["inputs"]
        },
    )


def _content(transaction: Transaction) -> ContentId | None:
    return transaction.version.content_id if transaction.version else None


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What somebody wants built, and where."""

    targets: tuple[str, ...]
    branch: str
    fallback: tuple[str, ...] = ()
    upstream: bool = False
    force: bool = False
    # Incremental jobs run, and read everything.
    full: bool = False
    # any, chain or off: from where results may be adopted.
    adopt: str = "any"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""

    @property
    def chain(self) -> tuple[str, ...]:
        return make_chain(self.branch, self.fallback)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an output is written: on a branch that exists, or on one to be made."""

    dataset: DatasetId | None
    branch: BranchId | None
    view: TransactionId | None
    # The branch that a new one is made off, as it was seen.
    parent: Branch | None
    remembered_chain: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Decisions in the order of dependency; making a plan has no side effect."""

    request: PlanRequest
    decisions: tuple[Decision, ...]
    places: Mapping[DatasetName, Place]
    # What looks at content found, which is not looked at again when the build is opened.
    answers: Answers = field(default_factory=dict[Question, Answer])
    # What was read for it, to be used again when the plan is checked.
    jobspecs: Mapping[JobSpecId, JobSpec] = field(default_factory=dict, repr=False, compare=False)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What only content can tell about incremental jobs, and nobody has looked at yet."""
        extents = (d.incremental for d in self.decisions if d.incremental is not None)
        return tuple(question for extent in extents for question in extent.questions)

    def same_as(self, other: Plan) -> bool:
        """Whether both would read, write and decide the same."""
        return self.decisions == other.decisions and self.places == other.places


def make_plan(
    connection: Connection,
    request: PlanRequest,
    *,
    answers: Answers = MappingProxyType({}),
    jobspecs: Mapping[JobSpecId, JobSpec] = MappingProxyType({}),
) -> Plan:
    """Resolves targets, JobSpecs, inputs and outputs; every error names what and how to mend it."""
    chain = request.chain
    targets = [parse_dataset_name(target) for target in request.targets]
    published = _Published(connection, chain, jobspecs)
    jobs = compile_graph(targets, chain, published, upstream=request.upstream)
    check_parameters((job.spec for job in jobs), request.parameters)
    outputs = {name for job in jobs for name in job.outputs}
    given = [spec for job in jobs for spec in job.spec.inputs]
    unpinned = {spec.dataset for spec in given if not spec.pinned}
    datasets = find_datasets(connection, outputs | {spec.dataset for spec in given})
    branches = _branches_by_dataset(connection, datasets)
    seen = sorted(outputs | unpinned, key=str)
    for name in seen:
        require_compatible(name, chain, branches.get(name, {}))
    facts = Facts(
        chain=chain,
        views=_views(connection, chain, seen, branches, outputs),
        pinned=_pinned(connection, given, branches),
        candidates=_Candidates(connection, request),
        past=CatalogPast(connection, lambda name: _base_of(chain, branches.get(name, {}))),
        answers=answers,
        parameters=request.parameters,
        environment=request.environment,
        now=now(connection),
        force=request.force,
        full=request.full,
    )
    decisions = decide(jobs, facts)
    return Plan(
        request=request,
        decisions=decisions,
        places=_places(chain, decisions, datasets, branches),
        answers=dict(answers),
        jobspecs=published.read,
    )


class _Published(Mapping[DatasetName, Mapping[str, JobSpec | Removed]]):
    """What a chain has published; a JobSpec is read only when a graph comes to it."""

    def __init__(
        self, connection: Connection, chain: Sequence[str], known: Mapping[JobSpecId, JobSpec]
    ) -> None:
        # A JobSpec never changes, so those of an earlier plan are as good as new.
        self.read = dict(known)
        self._pointers: dict[DatasetName, dict[str, Pointer]] = {}
        # A graph asks for each dataset several times.
        self._found: dict[DatasetName, dict[str, JobSpec | Removed]] = {}
        for pointer in find_pointers(connection, chain):
            name = parse_dataset_name(pointer.dataset)
            self._pointers.setdefault(name, {})[pointer.branch] = pointer

    def __getitem__(self, name: DatasetName) -> dict[str, JobSpec | Removed]:
        if name not in self._found:
            pointers = self._pointers[name].items()
            self._found[name] = {branch: self._resolved(pointer) for branch, pointer in pointers}
        return self._found[name]

    def __iter__(self) -> Iterator[DatasetName]:
        return iter(self._pointers)

    def __len__(self) -> int:
        return len(self._pointers)

    def _resolved(self, pointer: Pointer) -> JobSpec | Removed:
        if pointer.removed:
            return Removed.MARK
        if pointer.jobspec not in self.read:
            self.read[pointer.jobspec] = jobspec_from_json(pointer.body()["jobspec"])
        return self.read[pointer.jobspec]


def _branches_by_dataset(
    connection: Connection, datasets: Mapping[DatasetName, Dataset]
) -> dict[DatasetName, dict[str, Branch]]:
    found: dict[DatasetName, dict[str, Branch]] = {name: {} for name in datasets}
    for branch in branches_of(connection, [d.id for d in datasets.values()]):
        found[branch.dataset][branch.name] = branch
    return found


def _views(
    connection: Connection,
    chain: Sequence[str],
    names: Iterable[DatasetName],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
    outputs: Collection[DatasetName] = (),
) -> dict[DatasetName, View]:
    """Of each dataset, the first branch of the chain with a COMMITTED transaction.

    What an output was made from is asked of whoever made it: compaction makes nothing stale.
    """
    first: dict[DatasetName, tuple[str, TransactionId]] = {}
    for name in names:
        known = branches.get(name, {})
        for branch in chain:
            view = known[branch].view if branch in known else None
            if view is not None:
                first[name] = (branch, view)
                break
    loaded = load_transactions(connection, [id for _, id in first.values()])
    return {
        name: _view(
            name,
            branch,
            loaded[id],
            find_maker(connection, loaded[id]) if name in outputs else loaded[id],
        )
        for name, (branch, id) in first.items()
    }


def first_view(connection: Connection, name: DatasetName, chain: Sequence[str]) -> View | None:
    """What a chain shows of a dataset now."""
    found = find_datasets(connection, [name])
    named = branches_named(connection, chain, [dataset.id for dataset in found.values()])
    return _views(connection, chain, [name], {name: {b.name: b for b in named}}).get(name)


def _view(name: DatasetName, branch: str, transaction: Transaction, maker: Transaction) -> View:
    made_from = maker.provenance.get("fingerprint")
    return View(
        dataset=name,
        branch=branch,
        transaction=transaction.id,
        content=transaction.version.content_id if transaction.version else None,
        committed_at=maker.closed_at or maker.opened_at,
        made_from=fingerprint_from_json(made_from) if made_from else None,
    )


def _pinned(
    connection: Connection,
    given: Iterable[InputSpec],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
) -> dict[Pin, View]:
    found: dict[Pin, View] = {}
    for spec in given:
        if not spec.pinned:
            continue
        on = branches.get(spec.dataset, {}).get(spec.branch or "")
        id = spec.transaction or (on.view if on else None)
        transaction = find_transaction(connection, id) if id else None
        if transaction is None or transaction.state is not TransactionState.COMMITTED:
            continue
        if transaction.dataset != spec.dataset:
            continue
        pin = Pin(dataset=spec.dataset, branch=spec.branch, transaction=spec.transaction)
        on_branch = spec.branch or transaction.branch
        found[pin] = _view(spec.dataset, on_branch, transaction, transaction)
    return found


class _Candidates:
    """Looks for what can be adopted, only for the jobs that ask."""

    def __init__(self, connection: Connection, request: PlanRequest) -> None:
        self._connection = connection
        self._request = request

    @cached_property
    def _is_protected(self) -> bool:
        return self._request.branch in list_protected(self._connection)

    def get(self, build_key: str, /) -> Candidate | None:
        if self._request.adopt == "off":
            return None
        groups: dict[int, list[Transaction]] = {}
        for transaction in find_adoptable_by_key(self._connection, build_key):
            if ON_WORD_OF in transaction.provenance and self._is_protected:
                # What a client says that it computed may not become what others rely on.
                continue
            on_chain = transaction.branch in self._request.chain
            if on_chain or self._request.adopt == "any":
                groups.setdefault(transaction.publication or 0, []).append(transaction)
        if not groups:
            return None
        newest = groups[max(groups)]
        return Candidate(
            branch=newest[0].branch,
            transactions={t.dataset: t.id for t in newest},
            contents={t.dataset: t.version.content_id if t.version else None for t in newest},
            types={t.dataset: t.type for t in newest},
            committed_at=newest[0].closed_at or newest[0].opened_at,
        )


def _base_of(chain: Sequence[str], known: Mapping[str, Branch]) -> TransactionId | None:
    """The view that an output's next transaction is going to stand on."""
    place = output_place(chain, known)
    on = known.get(chain[0]) or (known[place.parent] if place.parent is not None else None)
    return on.view if on is not None else None


def _places(
    chain: Sequence[str],
    decisions: Sequence[Decision],
    datasets: Mapping[DatasetName, Dataset],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
) -> dict[DatasetName, Place]:
    """Where each output that will be written goes; what is fresh is left alone."""
    found: dict[DatasetName, Place] = {}
    for decision in decisions:
        if decision.state is Decided.FRESH:
            continue
        for name in decision.job.outputs:
            known = branches.get(name, {})
            place: OutputPlace = output_place(chain, known)
            here = known.get(chain[0])
            found[name] = Place(
                dataset=datasets[name].id if name in datasets else None,
                branch=here.id if here else None,
                view=here.view if here else None,
                parent=known[place.parent] if place.parent and not here else None,
                remembered_chain=place.remembered_chain,
            )
    return found


# Looks at content where the catalog alone cannot tell whether something was overwritten.

_ADDS = frozenset({"append", "replace"})
_REMOVES = frozenset({"delete"})


def plan_build(database: Database, contents: Contents, request: PlanRequest) -> Plan:
    """A plan with nothing left to ask: content is looked at outside of any SQL transaction."""
    answers: dict[Question, Answer] = {}
    jobspecs: Mapping[JobSpecId, JobSpec] = {}
    while True:
        plan = database.read(
            partial(make_plan, request=request, answers=answers, jobspecs=jobspecs)
        )
        jobspecs = plan.jobspecs
        if not plan.questions:
            return plan
        answers |= answer(database, contents, plan.questions)


def answer(
    database: Database, contents: Contents, questions: Collection[Question]
) -> dict[Question, Answer]:
    """Whether all that was read last is still there, unchanged, in what is read now."""
    found, kinds = database.read(partial(_gather, questions=questions))
    about = {DatasetKind.FILES: _about_files, DatasetKind.TABLE: _about_table}
    return {q: about[kinds[q.dataset]](contents, q, found) for q in questions}


def _gather(
    connection: Connection, questions: Collection[Question]
) -> tuple[dict[TransactionId, Transaction], dict[DatasetName, DatasetKind]]:
    """What all questions are about, in a handful of queries however many they are."""
    wanted = {id for q in questions for id in (q.last.transaction, q.now, *q.suspects)}
    found = load_transactions(connection, wanted)
    suspects = {id for question in questions for id in question.suspects}
    parents = [parent for id in suspects if (parent := found[id].parent) is not None]
    found |= load_transactions(connection, parents)
    datasets = find_datasets(connection, {question.dataset for question in questions})
    return found, {name: dataset.kind for name, dataset in datasets.items()}


def _about_files(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> Answer:
    if found[question.last.transaction].condemned:
        return _expired(question)
    for id in question.suspects:
        step, parent = found[id], found[id].parent
        before = root_of(found[parent].version) if parent is not None else None
        try:
            reason = contents.trees.find_violation(
                TransactionType.APPEND, before, root_of(step.version)
            )
        except HeadgateError:
            return _expired(question)
        if reason is not None:
            return _overwritten(question, id)
    if question.removals_allowed and _came_again(contents, question, found):
        return _overwritten(question, question.now)
    return Answer()


def _came_again(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> bool:
    """Whether a path was removed and put again with other content, step by step by the rules."""
    changes = contents.trees.difference(
        root_of(found[question.last.transaction].version), root_of(found[question.now].version)
    )
    return any(change.kind is ChangeKind.CHANGED for change in changes)


def _about_table(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> Answer:
    try:
        since = _since(contents, question, found)
    except HeadgateError:
        return _expired(question)
    now = _metadata(contents, found[question.now])
    added = snapshots_since(now, since)
    if added is None:
        why = f"the Iceberg history of {question.dataset} does not go on from what was read last"
        return Answer(why=why, broken_by=question.now)
    allowed = _ADDS | _REMOVES if question.removals_allowed else _ADDS
    # They come newest first, and what broke it first is what a person wants to know.
    for snapshot in reversed(added):
        if snapshot["summary"].get("operation") not in allowed:
            return _overwritten(question, _made_by(contents, question, found, snapshot))
    return Answer(since_snapshot=since)


def _since(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> int | None:
    """The snapshot that was read last; it is on record where the version itself is gone."""
    if question.last.snapshot is not None:
        return question.last.snapshot
    return tip_of(_metadata(contents, found[question.last.transaction]))


def _made_by(
    contents: Contents,
    question: Question,
    found: Mapping[TransactionId, Transaction],
    snapshot: Json,
) -> TransactionId:
    for id in question.suspects:
        try:
            known = _metadata(contents, found[id]).get("snapshots") or []
        except HeadgateError:
            continue
        if any(item["snapshot-id"] == snapshot["snapshot-id"] for item in known):
            return id
    return question.now


def _metadata(contents: Contents, transaction: Transaction) -> Metadata:
    assert transaction.version is not None, f"{transaction.id} is a tombstone"
    return contents.tables.read(transaction.version.location).metadata


def _overwritten(question: Question, by: TransactionId) -> Answer:
    return Answer(why=f"{by} overwrote part of {question.dataset}", broken_by=by)


def _expired(question: Question) -> Answer:
    last = question.last.transaction
    return Answer(why=f"{last}, read last of {question.dataset}, has expired", broken_by=last)
