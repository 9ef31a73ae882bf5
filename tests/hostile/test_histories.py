"""The checkers of histories accept a true one, and reject each twin that was falsified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.histories.checker import Publication, Witness, check
from tests.support.histories.records import (
    Content,
    Operation,
    Outcome,
    Read,
    Recorder,
    Request,
    Value,
    Write,
    read_operations,
)
from tests.support.histories.registers import NO_GO, Linearizability, check_registers, find_go
from tests.support.histories.stage import History
from tools import histories

A, B, ROWS, DEV = "h.a@master", "h.b@master", "h.rows@master", "h.a@dev"
_TOGETHER = {A: "unit", B: "unit"}
_START = 10
_FIRST: dict[str, Content] = {A: {}, B: {}, ROWS: {"x": [0, "first"]}, DEV: {}}

Past = tuple[list[Operation], Witness]


def _write(place: str, key: str, value: Value) -> Write:
    return Write(place=place, key=key, value=value)


def _operation(id: str, at: int, request: Request, **told: object) -> Operation:
    """Return an operation that lasts from a time for five units."""
    given = {"outcome": Outcome.OK, "ended": at + 5, "client": id[0], **told}
    return Operation(id=id, began=at, request=request, **given)  # type: ignore[arg-type]


def _read(id: str, at: int, place: str, key: str, value: Value) -> Operation:
    reads = (Read(place=place, key=key, value=value),)
    return _operation(id, at, Request(kind="read"), reads=reads)


def _publication(number: int, **contents: Content) -> Publication:
    """Return a publication; places are named by the last letter of their dataset."""
    places = {"a": A, "b": B, "rows": ROWS, "dev": DEV}
    moved = {places[name]: content for name, content in contents.items()}
    return Publication(
        number=number,
        contents=moved,
        views={place: f"t-{number}-{place}" for place in moved},
        previous={},
    )


def _true() -> Past:
    """Return a history of two clients, in which everything is as it should be."""
    both = (_write(A, "p", "unit"), _write(B, "p", "unit"))
    add = Write(place=ROWS, key="x", add=1, mark="s-4")
    conditional = Write(place=ROWS, key="x", add=100, mark="s-5")
    operations = [
        _operation("r-1", 0, Request(kind="put", writes=(_write(A, "p", "1"),)), number=11),
        _read("s-1", 6, A, "p", "1"),
        _operation("r-2", 10, Request(kind="put", writes=(_write(A, "p", "2"),)), number=12),
        # Concurrent with the next write: it may show either.
        _read("s-2", 18, A, "p", "2"),
        _operation("r-3", 20, Request(kind="unit", writes=both), number=13),
        _operation(
            "s-3",
            30,
            Request(kind="read together"),
            contents={A: {"p": "unit"}, B: {"p": "unit"}},
            newest=13,
        ),
        _operation("s-4", 40, Request(kind="increment", writes=(add,)), number=14),
        _operation(
            "r-4",
            41,
            Request(kind="put", writes=(_write(B, "q", "lost"),)),
            outcome=Outcome.UNKNOWN,
            ended=60,
        ),
        _operation(
            "s-5",
            50,
            Request(
                kind="increment if mark",
                writes=(conditional,),
                when=(Read(place=ROWS, key="x", value="s-4"),),
            ),
            number=16,
        ),
        _read("r-5", 70, ROWS, "x", [101, "s-5"]),
        _operation(
            "s-6", 80, Request(kind="read moment again", moment=12), contents={A: {"p": "2"}}
        ),
        _operation("r-6", 80, Request(kind="repeat", repeats="r-1"), number=11),
        _operation(
            "s-7",
            90,
            Request(kind="remove", writes=(_write(A, "none", None),)),
            outcome=Outcome.FAIL,
            reads=(Read(place=A, key="none", value=None),),
        ),
    ]
    publications = [
        _publication(11, a={"p": "1"}),
        _publication(12, a={"p": "2"}),
        _publication(13, a={"p": "unit"}, b={"p": "unit"}),
        _publication(14, rows={"x": [1, "s-4"]}),
        _publication(15, b={"p": "unit", "q": "lost"}),
        _publication(16, rows={"x": [101, "s-5"]}),
    ]
    return operations, _witness(publications)


def _witness(publications: Sequence[Publication]) -> Witness:
    final = dict(_FIRST)
    for one in publications:
        final.update(one.contents)
    return Witness(
        start=_START,
        contents=_FIRST,
        views={},
        bases={(DEV, A): {}},
        publications=publications,
        final=final,
    )


def _change(past: Past, id: str, **changes: object) -> Past:
    operations, witness = past
    changed = [
        replace(one, **changes) if one.id == id else one  # type: ignore[arg-type]
        for one in operations
    ]
    return changed, witness


def _swap_numbers(past: Past) -> Past:
    """Give two writes each other's place in the log."""
    operations, _ = past
    log = [
        _publication(11, a={"p": "2"}),
        _publication(12, a={"p": "1"}),
        *past[1].publications[2:],
    ]
    swapped = _change((operations, _witness(log)), "r-1", number=12)
    return _change(swapped, "r-2", number=11)


def _swap_receipts(past: Past) -> Past:
    return _change(_change(past, "r-1", number=12), "r-2", number=11)


def _drop_acknowledged(past: Past) -> Past:
    """Leave the newest acknowledged write out of the log."""
    return past[0], _witness(past[1].publications[:-1])


def _lose_without_trace(past: Past) -> Past:
    """Leave an acknowledged write out of the contents, while its publication is there."""
    log = list(past[1].publications)
    log[1] = _publication(12, a={"p": "1"})
    return past[0], _witness(log)


def _duplicate(past: Past) -> Past:
    """Execute an increment twice."""
    log = [*past[1].publications, _publication(17, rows={"x": [102, "s-4"]})]
    return past[0], _witness(log)


def _execute_rejected(past: Past) -> Past:
    return _change(past, "r-4", outcome=Outcome.FAIL)


def _split_unit(past: Past) -> Past:
    log = list(past[1].publications)
    log[2:3] = [_publication(13, a={"p": "unit"}), _publication(14, b={"p": "unit"})]
    log[4:] = [replace(one, number=one.number + 1) for one in log[4:]]
    later = past
    for id, number in (("s-4", 15), ("s-5", 17)):
        later = _change(later, id, number=number)
    return later[0], _witness(log)


def _read_half_of_a_unit(past: Past) -> Past:
    return _change(past, "s-3", contents={A: {"p": "unit"}, B: {}})


def _stale_read(past: Past) -> Past:
    return _change(past, "s-2", reads=(Read(place=A, key="p", value="1"),), began=16)


def _read_of_the_future(past: Past) -> Past:
    return _change(past, "s-1", reads=(Read(place=A, key="p", value="2"),), ended=9)


def _read_backwards(past: Past) -> Past:
    """Show a write to one read, and not to a later one, while the write goes on."""
    operations, witness = _change(past, "r-2", ended=19)
    operations.insert(3, _read("s-a", 11, A, "p", "2"))
    operations.insert(4, _read("s-b", 17, A, "p", "1"))
    return operations, witness


def _ignore_condition(past: Past) -> Past:
    wrong = replace(
        next(one for one in past[0] if one.id == "s-5").request,
        when=(Read(place=ROWS, key="x", value="other"),),
    )
    return _change(past, "s-5", request=wrong)


def _reject_condition_that_holds(past: Past) -> Past:
    operations, witness = _change(past, "s-5", number=None)
    return operations, _witness(witness.publications[:-1])


def _change_moment(past: Past) -> Past:
    return _change(past, "s-6", contents={A: {"p": "1"}})


def _receipt_of_another(past: Past) -> Past:
    return _change(past, "r-6", number=12)


def _claim_twice(past: Past) -> Past:
    operations, witness = past
    again = Request(kind="put", writes=(_write(A, "p", "2"),))
    return [*operations, _operation("r-7", 95, again, number=12)], witness


def _stale_log(past: Past) -> Past:
    return _change(past, "s-3", newest=12, contents={A: {"p": "2"}, B: {}})


def _reject_for_no_reason(past: Past) -> Past:
    return _change(past, "s-7", reads=(Read(place=A, key="p", value=None),))


def _gap(past: Past) -> Past:
    log = list(past[1].publications)
    log[-1] = replace(log[-1], number=17)
    return _change((past[0], _witness(log)), "s-5", number=17)


def _wrong_end(past: Past) -> Past:
    operations, witness = past
    return operations, replace(witness, final={**witness.final, A: {"p": "2"}})


# Each falsified history, with a violation that the checker must name.
_TWINS: Mapping[str, tuple[Callable[[Past], Past], str]] = {
    "swapped numbers": (_swap_numbers, "r-2 began after r-1 had ended, and is publication 11"),
    "swapped receipts": (_swap_receipts, "r-2 (put) is publication 11, which shows other contents"),
    "acknowledged write without publication": (_drop_acknowledged, "s-5 was told 16, which is not"),
    "acknowledged write without effect": (
        _lose_without_trace,
        "r-2 (put) is publication 12, which shows other contents",
    ),
    "write executed twice": (_duplicate, "publication 17 belongs to no operation"),
    "rejected write executed": (_execute_rejected, "publication 15 belongs to no operation"),
    "unit in two publications": (_split_unit, "r-3 (unit) is publication 13, which shows other"),
    "half of a unit": (_read_half_of_a_unit, "which no state of 13 to 13 shows"),
    "stale read": (_stale_read, "which no state of 12 to 13 shows"),
    "read before the write": (_read_of_the_future, "which no state of 11 to 11 shows"),
    "reads that go back": (_read_backwards, "s-b (read) was told h.a@master/p = 1"),
    "ignored condition": (_ignore_condition, "s-5 is publication 16, against its conditions"),
    "condition that held": (_reject_condition_that_holds, "that it changed nothing"),
    "changed moment": (_change_moment, "at the moment 12, which shows something else"),
    "receipt of another operation": (_receipt_of_another, "was told 12 in place of 11"),
    "one number for two operations": (_claim_twice, "r-7 and r-2 were told 12"),
    "stale log": (_stale_log, "s-3 was told that 12 is the newest publication"),
    "rejection without reason": (_reject_for_no_reason, "s-7 (remove) was told"),
    "gap in the log": (_gap, "the log has 17 in place of 16"),
    "other content at the end": (_wrong_end, "h.a@master shows p = 2 in place of unit"),
}
# What clients alone can see, without the numbers and the log.
_VISIBLE = (
    "half of a unit",
    "stale read",
    "read before the write",
    "reads that go back",
    "ignored condition",
    "condition that held",
    "stale log",
    "rejection without reason",
)


def test_history_in_which_all_is_true_is_accepted() -> None:
    verdict = check(*_true())
    assert verdict.violations == []
    assert verdict.found == 1
    assert verdict.published[15].id == "r-4"


@pytest.mark.parametrize("name", _TWINS)
def test_falsified_history_is_rejected_by_the_numbers_of_publications(name: str) -> None:
    falsify, violation = _TWINS[name]
    assert violation in "\n".join(check(*falsify(_true())).violations)


def test_append_whose_number_is_not_told_must_be_in_the_log() -> None:
    def append(id: str, at: int) -> Operation:
        writes = (_write(A, id, True),)
        return _operation(id, at, Request(kind="append", writes=writes, untold=True))

    operations = [append("p-1", 0), append("p-2", 10)]
    log = [_publication(11, a={"p-1": True}), _publication(12, a={"p-1": True, "p-2": True})]
    assert check(operations, _witness(log)).violations == []
    assert check(operations, _witness(log[:1])).violations == [
        "p-2 (append) was acknowledged, and is not logged"
    ]
    turned = [_publication(11, a={"p-2": True}), _publication(12, a={"p-1": True, "p-2": True})]
    assert check(operations, _witness(turned)).violations == [
        "p-2 began after p-1 had ended, and is publication 11, before 12"
    ]


def test_merge_takes_what_one_side_changed_since_the_last_merge() -> None:
    def merge(id: str, at: int, number: int) -> Operation:
        return _operation(id, at, Request(kind="merge", merge=(DEV, A)), number=number)

    def put(id: str, at: int, place: str, value: Value, number: int) -> Operation:
        writes = (_write(place, "p", value),)
        return _operation(id, at, Request(kind="put", writes=writes), number=number)

    operations = [
        put("r-1", 0, DEV, "1", 11),
        merge("r-2", 10, 12),
        put("r-3", 20, A, "2", 13),
        put("r-4", 30, B, "3", 14),
    ]
    log = [
        _publication(11, dev={"p": "1"}),
        _publication(12, a={"p": "1"}),
        _publication(13, a={"p": "2"}),
        _publication(14, b={"p": "3"}),
    ]
    assert check(operations, _witness(log)).violations == []
    # The source has not changed since the merge.
    brought_back = [*log, _publication(15, a={"p": "1"})]
    assert check([*operations, merge("r-5", 40, 15)], _witness(brought_back)).violations


def test_reset_shows_what_its_transaction_showed() -> None:
    put = Request(kind="put", writes=(_write(A, "p", "1"),))
    again = Request(kind="put", writes=(_write(A, "p", "2"),))
    reset = Request(kind="reset", reset=(A, f"t-11-{A}"), restores={"p": "1"})
    operations = [
        _operation("r-1", 0, put, number=11),
        _operation("r-2", 10, again, number=12),
        _operation("r-3", 20, reset, number=13),
    ]
    log = [_publication(11, a={"p": "1"}), _publication(12, a={"p": "2"})]
    assert check(operations, _witness([*log, _publication(13, a={"p": "1"})])).violations == []
    assert check(operations, _witness([*log, _publication(13, a={"p": "2"})])).violations


def test_reset_to_what_is_shown_may_change_nothing_and_another_may_not() -> None:
    first, again = (Request(kind="put", writes=(_write(A, "p", v),)) for v in "12")
    reset = Request(kind="reset", reset=(A, f"t-11-{A}"), restores={"p": "1"})
    operations = [
        _operation("r-1", 0, first, number=11),
        _operation("r-2", 10, again, number=12),
        _operation("r-3", 20, reset, number=13),
        _operation("s-1", 21, reset, number=None),
    ]
    log = [_publication(11, a={"p": "1"}), _publication(12, a={"p": "2"})]
    back = replace(_publication(13, a={"p": "1"}), views={A: f"t-11-{A}"})
    assert check(operations, _witness([*log, back])).violations == []
    too_early = [*operations[:3], _operation("s-1", 16, reset, number=None, ended=18)]
    assert check(too_early, _witness([*log, back])).violations


@pytest.mark.skipif(find_go() is None, reason=NO_GO)
def test_true_history_is_linearizable_for_porcupine(tmp_path: Path) -> None:
    found = check_registers(*_true(), together=_TOGETHER, work=tmp_path)
    assert (found.illegal, found.undecided) == ([], [])
    assert found.partitions == 4


@pytest.mark.skipif(find_go() is None, reason=NO_GO)
@pytest.mark.parametrize("name", _VISIBLE)
def test_falsified_history_is_rejected_by_porcupine(name: str, tmp_path: Path) -> None:
    falsify, _ = _TWINS[name]
    found = check_registers(*falsify(_true()), together=_TOGETHER, work=tmp_path)
    assert found.illegal


@pytest.mark.parametrize(
    ("illegal", "undecided", "flags", "status"),
    [
        ([], [], [], 0),
        ([], ["unit/p"], [], 1),
        ([], ["unit/p"], ["--allow-undecided"], 0),
        (["unit/p"], [], ["--allow-undecided"], 1),
    ],
)
def test_run_whose_registers_are_undecided_fails_unless_that_is_allowed(
    illegal: list[str],
    undecided: list[str],
    flags: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    operations, witness = _true()
    made = History(operations=operations, witness=witness, faults=Counter(), seconds=1.0)

    @contextmanager
    def open_stage(_plan: object, folder: Path) -> Iterator[SimpleNamespace]:
        folder.mkdir()
        yield SimpleNamespace(run=lambda: made)

    found = Linearizability(partitions=1, operations=1, illegal=illegal, undecided=undecided)
    monkeypatch.setattr(histories, "REPORTS", tmp_path)
    monkeypatch.setattr(histories, "open_stage", open_stage)
    monkeypatch.setattr(histories, "find_go", lambda: "go")
    monkeypatch.setattr(histories, "check_registers", lambda *_, **__: found)
    assert histories.main(["--database", "sqlite", *flags]) == status
    said = capsys.readouterr().out
    assert f"{len(undecided)} not decided in time" in said
    assert ("FAILED on sqlite: 1 registers are" in said) is bool(status)


def test_records_of_a_killed_client_keep_its_last_request(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path, "r")
    put = Request(kind="put", writes=(_write(A, "p", "1"),))
    first, second = recorder.next_id(), recorder.next_id()
    recorder.begin(first, put)
    recorder.end(first, Outcome.OK, number=11, views={A: "t-1"})
    recorder.begin(second, put)
    recorder.close()
    with path.open("a") as file:
        file.write('{"op": "r-2", "at": 1')
    done, open_ = read_operations([path])
    assert (done.outcome, done.number, done.views) == (Outcome.OK, 11, {A: "t-1"})
    assert done.request == put
    assert done.ended is not None and done.began <= done.ended
    assert (open_.outcome, open_.ended, open_.reason) == (Outcome.UNKNOWN, None, "client killed")


@pytest.mark.skipif(find_go() is None, reason=NO_GO)
@pytest.mark.parametrize(("rows", "accepted"), [(("p-1", "p-2"), True), (("p-2",), False)])
def test_append_that_is_missing_in_a_late_read_is_rejected_by_porcupine(
    rows: Sequence[str], accepted: bool, tmp_path: Path
) -> None:
    def append(id: str, at: int) -> Operation:
        writes = (_write(A, id, True),)
        return _operation(id, at, Request(kind="append", writes=writes, untold=True))

    late = 600 * 10**9
    content = dict.fromkeys(rows, True)
    read = _operation("s-1", late, Request(kind="read"), contents={A: content}, ended=late + 5)
    log = [_publication(11, a={"p-1": True}), _publication(12, a={"p-1": True, "p-2": True})]
    operations = [append("p-1", 0), append("p-2", 10), read]
    found = check_registers(operations, _witness(log), together={}, work=tmp_path)
    assert (found.illegal == []) is accepted
