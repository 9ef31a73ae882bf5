"""Check that a recorded history is strictly serialisable, in the order of its publications.

The witness is the log of the store with the content after each publication. Each acknowledged
write has the publication whose number it was told, and a model that executes the operations in the
order of their numbers shows the same contents. The numbers respect real time. Each read shows the
state after one publication: not before one that was acknowledged, or shown to another read, when it
began, and not after one that was requested later than it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tests.support.histories.model import Model
from tests.support.histories.records import Content, Operation, Outcome, Value


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One publication of the log: the new content and view of each place that it moved."""

    number: int
    contents: Mapping[str, Content]
    views: Mapping[str, str]
    # The view of each place before.
    previous: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Witness:
    """The log of the store since the clients started, read when all had ended."""

    # Number of the newest publication before the first operation, and what was shown then.
    start: int
    contents: Mapping[str, Content]
    views: Mapping[str, str | None]
    bases: Mapping[tuple[str, str], Content]
    publications: Sequence[Publication]
    # What each branch shows at the end.
    final: Mapping[str, Content]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the checker found."""

    violations: list[str]
    # Operations by the number of their publication.
    published: dict[int, Operation]
    # Operations without a reply that have a publication.
    found: int


def check(operations: Sequence[Operation], witness: Witness) -> Verdict:
    """Return all violations of strict serialisability."""
    claims = _Claims(operations, witness)
    replay = _Replay(witness, claims)
    violations = [*claims.violations, *replay.violations]
    violations += _check_order(operations, replay.published)
    violations += _check_reads(operations, replay, witness)
    return Verdict(
        violations=violations,
        published=replay.published,
        found=sum(one.outcome is Outcome.UNKNOWN for one in replay.published.values()),
    )


class _Claims:
    """Which acknowledged operation each publication belongs to."""

    def __init__(self, operations: Sequence[Operation], witness: Witness) -> None:
        self.violations: list[str] = []
        self.by_number: dict[int, Operation] = {}
        by_id = {one.id: one for one in operations}
        last = witness.start + len(witness.publications)
        for number, logged in enumerate(witness.publications, start=witness.start + 1):
            if logged.number != number:
                self.violations.append(f"the log has {logged.number} in place of {number}")
        for one in operations:
            if one.request.repeats is not None:
                first = by_id[one.request.repeats]
                if one.outcome is Outcome.OK and one.number != first.number:
                    self.violations.append(
                        f"{one.id} repeated {first.id}, and was told {one.number} in place of "
                        f"{first.number}"
                    )
            elif one.outcome is Outcome.OK and one.number is not None:
                if not witness.start < one.number <= last:
                    self.violations.append(f"{one.id} was told {one.number}, which is not logged")
                elif one.number in self.by_number:
                    other = self.by_number[one.number].id
                    self.violations.append(f"{one.id} and {other} were told {one.number}")
                else:
                    self.by_number[one.number] = one
                    views = witness.publications[one.number - witness.start - 1].views
                    if one.views and one.views != views:
                        self.violations.append(
                            f"{one.id} was told that {one.number} moved {dict(one.views)}, and "
                            f"the log has {dict(views)}"
                        )
        # In the order of their beginning: which of two equal requests landed cannot be seen.
        self.unnumbered = [
            one
            for one in operations
            if one.request.is_write
            and (
                one.outcome is Outcome.UNKNOWN or (one.outcome is Outcome.OK and one.request.untold)
            )
        ]


class _Replay:
    """Executes the operations in the model, in the order of the log."""

    def __init__(self, witness: Witness, claims: _Claims) -> None:
        self.violations: list[str] = []
        self.published = dict(claims.by_number)
        self.model = Model(
            contents=dict(witness.contents),
            views=dict(witness.views),
            bases=dict(witness.bases),
        )
        self.states = [_State.of(self.model)]
        self._unnumbered = list(claims.unnumbered)
        for publication in witness.publications:
            self._step(publication)
        for one in self._unnumbered:
            if one.outcome is Outcome.OK:
                self._add(f"{one.id} ({one.request.kind}) was acknowledged, and is not logged")
        for place, content in witness.final.items():
            if content != self.model.contents[place]:
                self._add(f"{place} shows {_difference(self.model.contents[place], content)}")

    def _step(self, publication: Publication) -> None:
        number = publication.number
        for place, view in publication.previous.items():
            if self.model.views.get(place) != view:
                self._add(f"publication {number} moved {place} from {view}, which was not its view")
        operation = self.published.get(number)
        if operation is None:
            operation = self._find(publication)
            if operation is not None:
                self.published[number] = operation
        if operation is None:
            self._add(f"publication {number} belongs to no operation: {_moves(publication)}")
        else:
            expected = self.model.effect(operation.request)
            if expected is None:
                self._add(f"{operation.id} is publication {number}, against its conditions")
            elif expected != publication.contents:
                self._add(
                    f"{operation.id} ({operation.request.kind}) is publication {number}, which "
                    f"shows other contents: {_differences(expected, publication.contents)}"
                )
        self.model.apply(
            operation.request if operation else None, publication.contents, publication.views
        )
        self.states.append(_State.of(self.model))

    def _find(self, publication: Publication) -> Operation | None:
        """Return an operation without a reply, and without a publication, with these effects."""
        for operation in self._unnumbered:
            if self.model.effect(operation.request) == publication.contents:
                self._unnumbered.remove(operation)
                return operation
        return None

    def _add(self, text: str) -> None:
        self.violations.append(text)


@dataclass(frozen=True, kw_only=True)
class _State:
    """All that is shown after one publication, and the merges' bases."""

    model: Model

    @classmethod
    def of(cls, model: Model) -> _State:
        return cls(
            model=Model(
                contents=dict(model.contents),
                views=dict(model.views),
                shown=model.shown,
                bases=dict(model.bases),
            )
        )

    def shows(self, operation: Operation) -> bool:
        """Return True if this is what the operation was told."""
        contents, views = self.model.contents, self.model.views
        return (
            all(contents[one.place].get(one.key) == one.value for one in operation.reads)
            and all(contents[place] == seen for place, seen in operation.contents.items())
            and all(views.get(place) == seen for place, seen in operation.views.items())
        )

    def explains(self, operation: Operation) -> bool:
        """Return True if the operation could be executed here, and told what it was told."""
        if not self.shows(operation):
            return False
        request = operation.request
        if operation.outcome is not Outcome.OK or not request.is_write:
            return True
        # It was acknowledged without a publication: it changes nothing here.
        effect = self.model.effect(request)
        return effect == {} or (effect is None and request.merge is None)


def _check_order(
    operations: Sequence[Operation], published: Mapping[int, Operation]
) -> Iterator[str]:
    """Yield the writes that have a lower number than one that ended before they began."""
    numbers = {one.id: number for number, one in published.items()}
    writes = [one for one in operations if one.id in numbers]
    ended = sorted(
        (one for one in writes if one.ended is not None and one.outcome is Outcome.OK),
        key=lambda one: one.ended or 0,
    )
    newest: Operation | None = None
    at = 0
    for one in writes:
        while at < len(ended) and (ended[at].ended or 0) < one.began:
            if newest is None or numbers[ended[at].id] > numbers[newest.id]:
                newest = ended[at]
            at += 1
        if newest is not None and numbers[newest.id] > numbers[one.id]:
            yield (
                f"{one.id} began after {newest.id} had ended, and is publication "
                f"{numbers[one.id]}, before {numbers[newest.id]}"
            )


def _check_reads(
    operations: Sequence[Operation], replay: _Replay, witness: Witness
) -> Iterator[str]:
    """Give each read the oldest state that real time permits; yield those that have none."""
    numbers = {one.id: number for number, one in replay.published.items()}
    newest_at = _Newest(replay.published, witness)
    # The states that operations used, by their end.
    used: list[tuple[int, int]] = []
    lowest = witness.start
    for one in operations:
        while used and used[0][0] < one.began:
            lowest = max(lowest, heappop(used)[1])
        if one.ended is None or one.outcome is Outcome.UNKNOWN:
            continue
        if one.request.moment is not None:
            yield from _check_moment(one, replay, witness)
        number = numbers.get(one.id)
        if number is not None:
            heappush(used, (one.ended, number))
            continue
        highest = newest_at(one.ended)
        first = lowest
        if one.newest is not None:
            # A client was told that this is the newest one.
            if not lowest <= one.newest <= highest:
                yield (
                    f"{one.id} was told that {one.newest} is the newest publication, in place of "
                    f"one of {lowest} to {highest}"
                )
            first = highest = one.newest
        if not _says_something(one):
            continue
        candidates = range(first, min(highest, witness.start + len(replay.states) - 1) + 1)
        state = next(
            (n for n in candidates if replay.states[n - witness.start].explains(one)), None
        )
        if state is None:
            yield (
                f"{one.id} ({one.request.kind}) was told {_told(one)}, which no state of "
                f"{first} to {highest} shows"
            )
        else:
            heappush(used, (one.ended, state))


def _says_something(one: Operation) -> bool:
    """Return True if the reply depends on the newest state."""
    if one.request.repeats is not None or (one.request.moment is not None and one.newest is None):
        return False
    acknowledged = one.outcome is Outcome.OK and one.request.is_write and not one.request.untold
    return bool(one.reads or one.contents or one.views or acknowledged or one.newest is not None)


def _check_moment(one: Operation, replay: _Replay, witness: Witness) -> Iterator[str]:
    number = one.request.moment or 0
    if not witness.start <= number < witness.start + len(replay.states):
        yield f"{one.id} read the moment {number}, which is not logged"
    elif not replay.states[number - witness.start].shows(one):
        yield f"{one.id} was told {_told(one)} at the moment {number}, which shows something else"


class _Newest:
    """The newest publication that can have existed at a time: later ones were not requested."""

    def __init__(self, published: Mapping[int, Operation], witness: Witness) -> None:
        self._start = witness.start
        # The time after which each publication can exist: that of its request, or of one before.
        self._since: list[int] = []
        latest = 0
        for publication in witness.publications:
            operation = published.get(publication.number)
            latest = max(latest, operation.began if operation else 0)
            self._since.append(latest)

    def __call__(self, at: int) -> int:
        low, high = 0, len(self._since)
        while low < high:
            middle = (low + high) // 2
            if self._since[middle] <= at:
                low = middle + 1
            else:
                high = middle
        return self._start + low


def _told(one: Operation) -> str:
    parts: list[str] = [f"{read.place}/{read.key} = {read.value}" for read in one.reads]
    parts += [f"{place} = {dict(content)}" for place, content in one.contents.items()]
    parts += [f"{place} at {view}" for place, view in one.views.items()]
    if one.request.is_write and one.outcome is Outcome.OK:
        parts.append("that it changed nothing")
    return ", ".join(parts) or "nothing"


def _moves(publication: Publication) -> str:
    return ", ".join(f"{place} to {view}" for place, view in publication.views.items())


def _differences(expected: Mapping[str, Content], found: Mapping[str, Content]) -> str:
    return "; ".join(
        f"{place}: {_difference(expected.get(place, {}), found.get(place, {}))}"
        for place in sorted({*expected, *found})
        if expected.get(place) != found.get(place)
    )


def _difference(expected: Content, found: Content) -> str:
    keys: Iterable[str] = sorted({*expected, *found})
    changed: dict[str, tuple[Value, Value]] = {
        key: (found.get(key), expected.get(key))
        for key in keys
        if found.get(key) != expected.get(key)
    }
    return ", ".join(f"{key} = {one} in place of {other}" for key, (one, other) in changed.items())
