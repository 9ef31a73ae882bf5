"""Plans of builds: catalog rows read here, decisions by the pure rules of `model.freshness`.

A plan has no side effect. The provenance that planning compares is written here too. Where the
catalog cannot decide whether an input only grew, `plan_build` inspects content, outside of any
catalog transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Required, TypedDict

from headgate.catalog import records
from headgate.catalog.builds import find_adoptable_by_key, find_hold
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.jobspecs import Pointer, find_pointers
from headgate.catalog.merge_base import find_span
from headgate.catalog.resolve import find_on_chain
from headgate.catalog.transactions import find_protections
from headgate.errors import BuildInputDenied, HeadgateError, Invalid
from headgate.files.edits import root_of
from headgate.files.objects import Digest
from headgate.files.tree import ChangeKind
from headgate.model import freshness, incrementality, nouns
from headgate.model.access import Protections
from headgate.model.ancestry import first_with_view, make_chain, output_place, require_compatible
from headgate.model.changes import Provenance
from headgate.model.ids import BranchId, BuildId, ContentId, DatasetId, JobSpecId, TransactionId
from headgate.model.jobspecs import (
    InputSpec,
    JobSpec,
    Removed,
    compile_graph,
    jobspec_from_json,
    match_targets,
)
from headgate.model.names import (
    DatasetName,
    check_branch_name,
    check_options,
    is_pattern,
    parse_dataset_name,
    split_names,
)
from headgate.model.rules import carried_facts
from headgate.settings import BuildSettings
from headgate.tables.metadata import Json, Metadata
from headgate.tables.snapshots import current_snapshot_id, snapshots_since

if TYPE_CHECKING:
    from headgate.attempts import Contents
    from headgate.model.access import ReadPolicy

# Provenance key of a client-run job: the actor who claims that the published code ran. A job that
# ran on the store's own side has no such key.
_REPORTED_BY = "on_word_of"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Targets of a build, and the chain of branches to build them on."""

    # Names of datasets, and patterns of names.
    targets: tuple[str, ...]
    branch: str
    fallback: tuple[str, ...] = ()
    upstream: bool = False
    force: bool = False
    # Incremental jobs run and read all of their inputs.
    full: bool = False
    # Where results may be adopted from: any, chain or off.
    adopt: str = "any"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # What the actor may read: a build reads nothing else for them. None: everything.
    policy: ReadPolicy | None = None

    @property
    def chain(self) -> tuple[str, ...]:
        return make_chain(self.branch, self.fallback)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Target of an output: an existing branch, or one that the build creates."""

    dataset: DatasetId | None
    branch: BranchId | None
    view: TransactionId | None
    # Parent of a new branch, as planning saw it.
    parent: nouns.Branch | None
    remembered_chain: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Decisions in the order of dependency."""

    request: PlanRequest
    decisions: tuple[freshness.Decision, ...]
    places: Mapping[DatasetName, Place]
    # Results of inspecting content, which are used again when the build is opened.
    answers: incrementality.Answers = field(
        default_factory=dict[incrementality.Question, incrementality.Answer]
    )
    # JobSpecs that were read, which are used again when the plan is checked.
    jobspecs: Mapping[JobSpecId, JobSpec] = field(default_factory=dict, repr=False, compare=False)

    @property
    def questions(self) -> tuple[incrementality.Question, ...]:
        """Return the open questions about incremental jobs that only content can decide."""
        extents = (d.incremental for d in self.decisions if d.incremental is not None)
        return tuple(question for extent in extents for question in extent.questions)

    def same_as(self, other: Plan) -> bool:
        """Return True if both read, write and decide the same."""
        return self.decisions == other.decisions and self.places == other.places


def plan_build(database: Database, contents: Contents, request: PlanRequest) -> Plan:
    """Return a plan without open questions; inspects content outside of SQL transactions."""
    answers: dict[incrementality.Question, incrementality.Answer] = {}
    jobspecs: Mapping[JobSpecId, JobSpec] = {}
    while True:
        plan = database.read(
            partial(make_plan, request=request, answers=answers, jobspecs=jobspecs)
        )
        jobspecs = plan.jobspecs
        if not plan.questions:
            return plan
        answers |= inspect_content(database, contents, plan.questions)


def make_plan(
    connection: Connection,
    request: PlanRequest,
    *,
    answers: incrementality.Answers = MappingProxyType({}),
    jobspecs: Mapping[JobSpecId, JobSpec] = MappingProxyType({}),
) -> Plan:
    """Resolve targets, JobSpecs, inputs and outputs, and decide each job."""
    chain = request.chain
    published, policy = _Published(connection, chain, jobspecs), request.policy
    if policy is not None:
        policy.require_branches(chain)
        # Before the search for them, whose errors tell what exists.
        for target in request.targets:
            if not is_pattern(target):
                policy.require_dataset(target)
    targets = match_targets(
        request.targets, chain, published, may_build=partial(_may_build, connection, policy)
    )
    jobs = compile_graph(targets, chain, published, upstream=request.upstream)
    for job in jobs:
        if policy is not None and not _may_build(connection, policy, job.spec):
            # Named only if it may be read; a hidden input is never named.
            is_shown = all(map(policy.shows_dataset, job.outputs))
            title = job.spec.title if is_shown else "a job that the targets need"
            raise BuildInputDenied(actor=policy.actor, job=title)
    freshness.check_parameters((job.spec for job in jobs), request.parameters)
    outputs = {name for job in jobs for name in job.outputs}
    given = [spec for job in jobs for spec in job.spec.inputs]
    unpinned = {spec.dataset for spec in given if not spec.pinned}
    on_chain = _OnChain(connection, chain, outputs | {spec.dataset for spec in given})
    seen = sorted(outputs | unpinned, key=str)
    for name in seen:
        require_compatible(name, chain, on_chain.branches(name))
    facts = freshness.Facts(
        chain=chain,
        views=on_chain.views(seen, outputs),
        pinned=on_chain.pinned(given),
        candidates=_Candidates(connection, request),
        find_hold=on_chain.find_hold,
        past=CatalogPast(connection, on_chain.find_base),
        answers=answers,
        parameters=request.parameters,
        now=now(connection),
        force=request.force,
        full=request.full,
    )
    decisions = freshness.decide(jobs, facts)
    return Plan(
        request=request,
        decisions=decisions,
        places=on_chain.places(decisions),
        answers=dict(answers),
        jobspecs=published.read,
    )


def _may_build(connection: Connection, policy: ReadPolicy | None, spec: JobSpec) -> bool:
    """Return whether every dataset and branch that a job reads or writes may be read."""
    if policy is None:
        return True
    if not all(policy.shows_dataset(output.dataset) for output in spec.outputs):
        return False
    for given in spec.inputs:
        pinned = given.branch
        if given.transaction is not None:
            pinned = records.load_transaction(connection, given.transaction).branch
        is_shown = pinned is None or policy.shows_branch(pinned)
        if not is_shown or not policy.shows_dataset(given.dataset):
            return False
    return True


class _Published(Mapping[DatasetName, Mapping[str, JobSpec | Removed]]):
    """JobSpecs published on a chain; each is read when the graph reaches it."""

    def __init__(
        self, connection: Connection, chain: Sequence[str], known: Mapping[JobSpecId, JobSpec]
    ) -> None:
        # A JobSpec never changes, so those of an earlier plan are still valid.
        self.read = dict(known)
        self._pointers: dict[DatasetName, dict[str, Pointer]] = {}
        # The graph reads each dataset several times.
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


class _OnChain:
    """Datasets and their branches, as a chain shows them."""

    def __init__(
        self, connection: Connection, chain: Sequence[str], names: Collection[DatasetName]
    ) -> None:
        self._connection = connection
        self._chain = chain
        self._datasets = records.find_datasets(connection, names)
        self._branches: dict[DatasetName, dict[str, nouns.Branch]] = {}
        for branch in records.branches_of(connection, [d.id for d in self._datasets.values()]):
            self._branches.setdefault(branch.dataset, {})[branch.name] = branch

    def branches(self, name: DatasetName) -> Mapping[str, nouns.Branch]:
        """Return the branches of a dataset, by name; none if it does not exist."""
        return self._branches.get(name, {})

    def views(
        self, names: Iterable[DatasetName], outputs: Collection[DatasetName]
    ) -> dict[DatasetName, freshness.View]:
        """Return the view of each dataset on the first branch of the chain that has one.

        Of an output, the maker's fingerprint counts, so that compaction makes nothing stale.
        """
        first: dict[DatasetName, tuple[str, TransactionId]] = {}
        for name in names:
            source = first_with_view(self._chain, self.branches(name))
            if source is not None and source.view is not None:
                first[name] = (source.name, source.view)
        loaded = records.load_transactions(self._connection, [id for _, id in first.values()])
        return {
            name: _view(
                name,
                branch,
                loaded[id],
                _find_maker(self._connection, loaded[id]) if name in outputs else loaded[id],
            )
            for name, (branch, id) in first.items()
        }

    def pinned(self, given: Iterable[InputSpec]) -> dict[freshness.Pin, freshness.View]:
        found: dict[freshness.Pin, freshness.View] = {}
        for spec in given:
            if not spec.pinned:
                continue
            on = self.branches(spec.dataset).get(spec.branch or "")
            id = spec.transaction or (on.view if on else None)
            transaction = records.find_transaction(self._connection, id) if id else None
            if (
                transaction is not None
                and transaction.state is nouns.TransactionState.COMMITTED
                and transaction.dataset == spec.dataset
            ):
                pin = freshness.Pin(
                    dataset=spec.dataset, branch=spec.branch, transaction=spec.transaction
                )
                on_branch = spec.branch or transaction.branch
                found[pin] = _view(spec.dataset, on_branch, transaction, transaction)
        return found

    def find_hold(self, output: DatasetName, inputs_key: str) -> freshness.Hold | None:
        """Return the hold of the branch that shows an output: its own, else the fallback's."""
        source = first_with_view(self._chain, self.branches(output))
        if source is None:
            return None
        return find_hold(self._connection, output, source.id, inputs_key)

    def find_base(self, output: DatasetName) -> TransactionId | None:
        """Return the view that an output's next transaction starts from."""
        known = self.branches(output)
        place = output_place(self._chain, known)
        on = known.get(self._chain[0]) or (known[place.parent] if place.parent else None)
        return on.view if on is not None else None

    def places(self, decisions: Sequence[freshness.Decision]) -> dict[DatasetName, Place]:
        """Return the place of each output that is written; those of skipped jobs are not."""
        found: dict[DatasetName, Place] = {}
        for name in (name for d in decisions if not d.is_skipped for name in d.job.outputs):
            known = self.branches(name)
            place = output_place(self._chain, known)
            here = known.get(self._chain[0])
            found[name] = Place(
                dataset=self._datasets[name].id if name in self._datasets else None,
                branch=here.id if here else None,
                view=here.view if here else None,
                parent=known[place.parent] if place.parent and not here else None,
                remembered_chain=place.remembered_chain,
            )
        return found


def first_view(
    connection: Connection, name: DatasetName, chain: Sequence[str]
) -> freshness.View | None:
    """Return the current view of a dataset on a chain."""
    dataset = records.find_dataset(connection, name)
    source = find_on_chain(connection, chain, dataset.id).source if dataset else None
    if source is None or source.view is None:
        return None
    shown = records.load_transaction(connection, source.view)
    return _view(name, source.name, shown, shown)


def _view(
    name: DatasetName, branch: str, transaction: nouns.Transaction, maker: nouns.Transaction
) -> freshness.View:
    made_from = maker.provenance.get("fingerprint")
    return freshness.View(
        dataset=name,
        branch=branch,
        transaction=transaction.id,
        content=_content(transaction),
        committed_at=maker.closed_at or maker.opened_at,
        made_from=freshness.fingerprint_from_json(made_from) if made_from else None,
        read={
            parse_dataset_name(given["dataset"]): TransactionId(given["transaction"])
            for given in (maker.provenance.get("inputs", ()) if made_from else ())
        },
    )


def find_late_hold(
    connection: Connection, plan: Plan, decision: freshness.Decision
) -> freshness.Hold | None:
    """Return the hold on a job whose key was not known when the build was planned.

    The branches that the build made have no holds; their parents, which they were made from, have.
    """

    def find(output: DatasetName, inputs_key: str) -> freshness.Hold | None:
        place = plan.places[output]
        branch = place.parent.id if place.parent is not None else place.branch
        return find_hold(connection, output, branch, inputs_key) if branch is not None else None

    return freshness.find_hold(decision, find, now(connection))


class _Candidates:
    """Results that a job can adopt, read when a decision needs them."""

    def __init__(self, connection: Connection, request: PlanRequest) -> None:
        self._connection = connection
        self._request = request

    @cached_property
    def _protections(self) -> Protections:
        return find_protections(self._connection)

    def get(self, build_key: str, /) -> freshness.Candidate | None:
        if self._request.adopt == "off":
            return None
        groups: dict[int, list[nouns.Transaction]] = {}
        for transaction in find_adoptable_by_key(self._connection, build_key):
            is_reported = _REPORTED_BY in transaction.provenance
            if is_reported and self._protections.covers(self._request.branch, transaction.dataset):
                # A protected branch takes no results that only a client vouches for.
                continue
            if transaction.branch in self._request.chain or self._request.adopt == "any":
                groups.setdefault(transaction.publication or 0, []).append(transaction)
        if not groups:
            return None
        newest = groups[max(groups)]
        return freshness.Candidate(
            branch=newest[0].branch,
            transactions={t.dataset: t.id for t in newest},
            contents={t.dataset: _content(t) for t in newest},
            types={t.dataset: t.type for t in newest},
            committed_at=newest[0].closed_at or newest[0].opened_at,
        )


# --- earlier builds -------------------------------------------------------------------------

# Returns the transaction that would be the parent of an output's new one.
FindBase = Callable[[DatasetName], TransactionId | None]


class CatalogPast:
    """Bases of outputs and histories of inputs; see `model.freshness.Past`."""

    def __init__(self, connection: Connection, find_base: FindBase) -> None:
        self._connection = connection
        self._find_base = find_base
        self._bases: dict[DatasetName, incrementality.Base] = {}

    def base(self, output: DatasetName, /) -> incrementality.Base:
        if output not in self._bases:
            self._bases[output] = _load_base(self._connection, self._find_base(output))
        return self._bases[output]

    def since(
        self, last: TransactionId, head: TransactionId, /
    ) -> tuple[incrementality.Change, ...] | None:
        found = find_span(self._connection, last, head)
        if found is None:
            return None
        return tuple(
            incrementality.Change(
                transaction=step.transaction,
                number=step.depth + 1,
                type=step.type,
                changes_content=step.before != step.after,
            )
            for step in found
        )


def _load_base(connection: Connection, id: TransactionId | None) -> incrementality.Base:
    """Return a transaction's content, and the newest build whose result that is."""
    if id is None:
        return incrementality.Base()
    top = records.load_transaction(connection, id)
    maker = _find_maker(connection, top)
    last = _last_build(maker)
    return incrementality.Base(
        transaction=top.id,
        number=top.depth + 1,
        content=_content(top),
        last=last,
        foreign=maker.id if last is None and _content(maker) is not None else None,
    )


def _find_maker(connection: Connection, top: nouns.Transaction) -> nouns.Transaction:
    """Return the transaction that made this content: a build's, or the first one with it.

    Compaction and changed properties do not change a build's result, however many follow it.
    """
    here = top
    while not _is_built(here) and here.parent is not None:
        below = records.load_transaction(connection, here.parent)
        if _content(below) != _content(here):
            break
        here = below
    return here


def _is_built(transaction: nouns.Transaction) -> bool:
    """Return True if a build made it and it has content."""
    return "fingerprint" in transaction.provenance and transaction.version is not None


def _last_build(transaction: nouns.Transaction) -> incrementality.LastBuild | None:
    if not _is_built(transaction):
        return None
    facts = transaction.provenance
    incremental = facts.get("incremental") or {}
    snapshots = incremental.get("snapshots") or {}
    return incrementality.LastBuild(
        transaction=transaction.id,
        semantic_version=incremental.get("semantic_version", incrementality.FIRST_SEMANTIC_VERSION),
        read={
            parse_dataset_name(given["dataset"]): incrementality.ReadAt(
                transaction=TransactionId(given["transaction"]),
                snapshot=snapshots.get(given["dataset"]),
            )
            for given in facts["inputs"]
        },
    )


def _content(transaction: nouns.Transaction) -> ContentId | None:
    return transaction.version.content_id if transaction.version else None


# --- provenance -----------------------------------------------------------------------------


def provenance_of(
    build: BuildId,
    decision: freshness.Decision,
    inputs: Sequence[Mapping[str, Any]],
    *,
    adopted_from: nouns.Transaction | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
    snapshots: Mapping[str, int] | None = None,
    reported_by: str | None = None,
) -> Provenance:
    """Return the provenance of a built transaction; freshness and adoption compare its keys."""
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
        facts["adopted_from"] = {"transaction": adopted_from.id, "branch": adopted_from.branch}
        facts |= carried_facts(adopted_from.provenance)
        reported_by = adopted_from.provenance.get(_REPORTED_BY)
    if reported_by is not None:
        facts[_REPORTED_BY] = reported_by
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


# --- inspecting content ---------------------------------------------------------------------

# Operations of Iceberg snapshots.
_ADDS = frozenset({"append", "replace"})
_REMOVES = frozenset({"delete"})


def inspect_content(
    database: Database, contents: Contents, questions: Collection[incrementality.Question]
) -> dict[incrementality.Question, incrementality.Answer]:
    """Answer whether everything that was read last is still there, unchanged."""

    def gather(connection: Connection) -> tuple[_Found, dict[DatasetName, nouns.Dataset]]:
        """Read all rows in a fixed number of queries, however many questions there are."""
        wanted = {id for q in questions for id in (q.last.transaction, q.now, *q.suspects)}
        found = records.load_transactions(connection, wanted)
        suspects = {id for question in questions for id in question.suspects}
        parents = [parent for id in suspects if (parent := found[id].parent) is not None]
        found |= records.load_transactions(connection, parents)
        return found, records.find_datasets(
            connection, {question.dataset for question in questions}
        )

    found, datasets = database.read(gather)
    return {q: _Inspection(contents, q, found).answer(datasets[q.dataset].kind) for q in questions}


_Found = dict[TransactionId, nouns.Transaction]


class _Inspection:
    """Answers one question from the content of its transactions."""

    def __init__(
        self, contents: Contents, question: incrementality.Question, found: _Found
    ) -> None:
        self._contents = contents
        self._question = question
        self._found = found

    def answer(self, kind: nouns.DatasetKind) -> incrementality.Answer:
        return self._files() if kind is nouns.DatasetKind.FILES else self._table()

    def _files(self) -> incrementality.Answer:
        question, trees = self._question, self._contents.trees
        if self._found[question.last.transaction].condemned:
            return self._expired()
        for id in question.suspects:
            parent = self._found[id].parent
            before = self._root(parent) if parent is not None else None
            try:
                reason = trees.find_violation(nouns.TransactionType.APPEND, before, self._root(id))
            except HeadgateError:
                return self._expired()
            if reason is not None:
                return self._overwritten(id)
        if question.removals_allowed:
            # A path may have other content by steps that are each allowed: removed, put again.
            changes = trees.difference(
                self._root(question.last.transaction), self._root(question.now)
            )
            if any(change.kind is ChangeKind.CHANGED for change in changes):
                return self._overwritten(question.now)
        return incrementality.Answer()

    def _table(self) -> incrementality.Answer:
        question = self._question
        # The record has the snapshot that was read last, also after the version is gone.
        since = question.last.snapshot
        if since is None:
            try:
                since = current_snapshot_id(self._metadata(question.last.transaction))
            except HeadgateError:
                return self._expired()
        added = snapshots_since(self._metadata(question.now), since)
        if added is None:
            why = (
                f"the Iceberg history of {question.dataset} does not contain the snapshot read last"
            )
            return incrementality.Answer(why=why, broken_by=question.now)
        allowed = _ADDS | _REMOVES if question.removals_allowed else _ADDS
        # Newest first; the earliest overwrite is the one to report.
        for snapshot in reversed(added):
            if snapshot["summary"].get("operation") not in allowed:
                return self._overwritten(self._made_by(snapshot))
        return incrementality.Answer(since_snapshot=since)

    def _made_by(self, snapshot: Json) -> TransactionId:
        for id in self._question.suspects:
            try:
                known = self._metadata(id).get("snapshots") or []
            except HeadgateError:
                continue
            if any(item["snapshot-id"] == snapshot["snapshot-id"] for item in known):
                return id
        return self._question.now

    def _root(self, id: TransactionId) -> Digest:
        return root_of(self._found[id].version)

    def _metadata(self, id: TransactionId) -> Metadata:
        version = self._found[id].version
        assert version is not None, f"{id} is a tombstone"
        return self._contents.tables.read(version.location).metadata

    def _overwritten(self, by: TransactionId) -> incrementality.Answer:
        return incrementality.Answer(
            why=f"{by} overwrote part of {self._question.dataset}", broken_by=by
        )

    def _expired(self) -> incrementality.Answer:
        last = self._question.last.transaction
        why = f"{last}, read last of {self._question.dataset}, has expired"
        return incrementality.Answer(why=why, broken_by=last)


# Options of plans and builds, the same for an embedded store and for the client of a server.


class PlanOptions(TypedDict, total=False):
    """Options of a plan, for an embedded and a served store; only `branch` is required."""

    branch: Required[str]
    # Branch names, also as `a,b`. Default: the configured fallbacks, else the primary branch.
    fallback: Sequence[str] | None
    upstream: bool
    # Execute every job, also fresh ones.
    force: bool
    # Incremental jobs read all of their inputs.
    full: bool
    parameters: Mapping[str, Any] | None
    # Accept a branch that does not exist yet. Default: only where a fallback is named.
    create: bool | None


class BuildOptions(PlanOptions, total=False):
    """Options of a build: those of its plan, and those of its execution."""

    # Publish nothing until every job of the build has succeeded.
    atomic: bool
    retries: int
    abort_on_failure: bool
    wait_seconds: float
    task_key: str | None


def check_limits(options: BuildOptions) -> None:
    """Raise `Invalid` if the number of retries or the time to wait is negative."""
    for option, given in (
        ("retries", options.get("retries", 0)),
        ("wait_seconds", options.get("wait_seconds", 0)),
    ):
        if not given >= 0:
            raise Invalid(f"{option} is {given!r}: give 0 or more.")


def plan_request(
    targets: Sequence[str],
    options: PlanOptions,
    *,
    builds: BuildSettings,
    policy: ReadPolicy | None = None,
) -> PlanRequest:
    """Return the request for a plan of these targets, with defaults from the settings."""
    check_options(options, BuildOptions, needed=("branch",))
    fallback = options.get("fallback")
    wanted = split_names(targets)
    if not wanted:
        raise Invalid("name the datasets to build, or a pattern such as `gold.*`; `*` is all.")
    for name in (options["branch"], *split_names(fallback or ())):
        check_branch_name(name)
    configured = builds.fallback_of(options["branch"])
    if policy is not None:
        configured = tuple(name for name in configured if policy.shows_branch(name))
    return PlanRequest(
        targets=wanted,
        branch=options["branch"],
        fallback=configured if fallback is None else split_names(fallback),
        upstream=options.get("upstream", False),
        force=options.get("force", False),
        full=options.get("full", False),
        # Of results on other branches the actor may not even know that they exist.
        adopt="chain" if policy is not None and builds.adopt == "any" else builds.adopt,
        parameters=options.get("parameters") or {},
        policy=policy,
    )
