"""Rules of cleanup in isolation: no database, no store, no clock."""

from __future__ import annotations

import pytest

from headgate.catalog.retention import kept_histories, strings_in
from headgate.errors import Invalid
from headgate.model.ids import Instant, TransactionId
from headgate.upkeep.cleanup import DAY_SECONDS, CleanupReport, Step, check_older_than
from headgate.upkeep.reachability import Cutoffs, Disposition, Kind, decide, read_key

_CUTOFFS = Cutoffs(young_since=Instant(100), fresh_since=Instant(200))


def _t(*names: str) -> set[TransactionId]:
    return {TransactionId(name) for name in names}


def _parents(*pairs: tuple[str, str | None]) -> dict[TransactionId, TransactionId | None]:
    return {TransactionId(a): TransactionId(b) if b else None for a, b in pairs}


def test_history_of_an_old_view_keeps_the_view_alone() -> None:
    assert kept_histories(_t("c"), {}) == _t("c")


def test_history_of_a_young_view_keeps_what_it_replaced_and_no_more() -> None:
    assert kept_histories(_t("c"), _parents(("c", "b"))) == _t("c", "b")


def test_history_that_is_young_throughout_is_kept_throughout() -> None:
    young = _parents(("c", "b"), ("b", "a"), ("a", None))
    assert kept_histories(_t("c"), young) == _t("a", "b", "c")


def test_histories_that_join_are_each_kept() -> None:
    young = _parents(("c", "b"), ("d", "b"), ("b", "a"), ("x", "y"))
    assert kept_histories(_t("c", "d"), young) == _t("a", "b", "c", "d")


@pytest.mark.parametrize("text", ['{"a": ["t-1", {"v-2": "x y"}]}', '{"a": ["t-1", {"v-2": "x y"'])
def test_words_of_whole_and_cut_off_json_are_found(text: str) -> None:
    assert {"t-1", "v-2"} <= strings_in([text])


@pytest.mark.parametrize(
    ("key", "kind", "digest"),
    [
        (f"objects/sha256/ab/{'c' * 62}", Kind.OBJECT, "ab" + "c" * 62),
        (f"bundles/{'d' * 64}.zip", Kind.BUNDLE, "d" * 64),
        (".headgate-probe-1", Kind.PROBE, None),
        ("tables/d-1/data/x.parquet", Kind.TABLE, None),
        (f"objects/sha256/ab/{'c' * 61}", Kind.UNKNOWN, None),
        (f"objects/sha256/ab/{'C' * 62}", Kind.UNKNOWN, None),
        (f"objects/sha256/ab/{'c' * 62}\n", Kind.UNKNOWN, None),
        (f"mine/objects/sha256/ab/{'c' * 62}", Kind.UNKNOWN, None),
        (f"bundles/{'d' * 64}.tar", Kind.UNKNOWN, None),
        ("tables.txt", Kind.UNKNOWN, None),
    ],
)
def test_key_is_read_as_what_wrote_it(key: str, kind: Kind, digest: str | None) -> None:
    assert read_key(key) == (kind, digest)


@pytest.mark.parametrize(
    ("needed", "modified_at", "condemned_at", "fate"),
    [
        (True, 0, None, Disposition.NEEDED),
        (True, 0, 1, Disposition.SPARE),
        (False, 99, None, Disposition.CONDEMN),
        (False, 100, None, Disposition.YOUNG),
        (False, 0, 200, Disposition.SWEEP),
        (False, 0, 201, Disposition.WAITING),
        # Stored again after it was swept: its writer is about to reclaim it.
        (False, 100, 200, Disposition.YOUNG),
    ],
)
def test_object_is_decided_by_need_and_age(
    needed: bool, modified_at: int, condemned_at: int | None, fate: Disposition
) -> None:
    found = decide(
        Kind.OBJECT,
        needed=needed,
        modified_at=Instant(modified_at),
        condemned_at=None if condemned_at is None else Instant(condemned_at),
        cutoffs=_CUTOFFS,
    )
    assert found is fate


@pytest.mark.parametrize(
    ("kind", "needed", "fate"),
    [(Kind.TABLE, None, Disposition.UNSURE), (Kind.UNKNOWN, False, Disposition.FOREIGN)],
)
def test_what_is_not_ours_or_in_doubt_is_left_alone_whatever_its_age(
    kind: Kind, needed: bool | None, fate: Disposition
) -> None:
    found = decide(
        kind, needed=needed, modified_at=Instant(0), condemned_at=Instant(0), cutoffs=_CUTOFFS
    )
    assert found is fate


def test_grace_under_a_day_is_refused() -> None:
    assert check_older_than(DAY_SECONDS) == DAY_SECONDS
    with pytest.raises(Invalid, match="24h or more"):
        check_older_than(DAY_SECONDS - 1)


def test_report_counts_by_step_and_reason() -> None:
    cleaned = CleanupReport(dry_run=False)
    cleaned.add(Step.CONDEMN, "object", "a", "unneeded", bytes=7)
    cleaned.add(Step.SWEEP, "object", "b", "unneeded", bytes=5)
    for number in range(30):
        cleaned.keep("unknown", "foreign", bytes=2, example=str(number))
    said = cleaned.to_json()
    assert (said["condemned"], said["deleted"], said["bytes"], said["spared"]) == (1, 1, 5, 0)
    [kept] = said["kept"]
    assert (kept["count"], kept["bytes"], len(kept["examples"])) == (30, 60, 20)
