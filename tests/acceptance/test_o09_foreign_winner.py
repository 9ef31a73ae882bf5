"""O09: somebody else moved the outside, or the door refused, after our outside effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.intents import list_intents
from headgate.catalog.recovery import recover
from headgate.catalog.schema import intents
from headgate.errors import (
    AttemptSuperseded,
    IntentPending,
    RecoveryStopped,
    Unavailable,
)
from headgate.model.failpoints import Failpoint
from headgate.model.recovery import Classification
from headgate.store.embedded import Store
from headgate.testing.failpoints import calling_at
from tests.support import effects
from tests.support.effects import DATASETS, NEW, OLD, OTHER_REF, REF, new_world, shown
from tests.support.git_outside import KIND, GitRefs
from tests.support.oracle import assert_store_sound
from tests.support.processes import assert_killed
from tests.support.stores import content, everything, expire_leases, files_branch, put

_BEFORE = Failpoint.INTENT_RECORDED
_AFTER = Failpoint.INTENT_EFFECT_DONE


def test_o09_refused_publication_undoes_an_effect_that_is_still_the_head(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    head = world.head()
    with world.open() as store, pytest.raises(AttemptSuperseded):
        _operate_superseded(store, world.git)
    with world.open() as store:
        assert (world.head(), shown(store)) == (head, [OLD] * 3)
        assert store.database.read(list_intents) == []
        assert_store_sound(store)


def test_o09_refused_publication_under_a_foreign_head_fails_closed(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    with world.open() as store:
        before = world.head()
        with pytest.raises(RecoveryStopped) as stopped:
            _operate_superseded(store, world.git, then=lambda: world.git.advance(REF, "foreign"))
        [intent] = store.database.read(list_intents)
        assert stopped.value.facts["operation"] == intent.operation
        assert "headgate recover" in stopped.value.facts["remedy"]
        assert world.git.log(REF) == ["foreign", "effect", f"first on {REF}"]
        _check_blocked(store, DATASETS)
        # The remedy: a person brings the outside back, then recovers.
        world.git.rewrite(REF, str(before))
        expire_leases(store)
        assert store.recover().rolled_back == [intent.operation]
        assert shown(store) == [OLD] * 3
        assert_store_sound(store)


def test_o09_two_effects_of_which_one_is_buried_are_both_kept(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    with world.open() as store, pytest.raises(RecoveryStopped):
        _operate_superseded(
            store, world.git, refs=(REF, OTHER_REF), then=lambda: world.git.advance(OTHER_REF, "x")
        )
    assert world.git.log(REF)[0] == "effect"
    assert world.git.log(OTHER_REF)[:2] == ["x", "effect"]


def test_o09_unplanned_effects_are_undone_by_the_ids_that_were_confirmed(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    with world.open() as store, pytest.raises(AttemptSuperseded):
        _operate_superseded(store, world.git, planned=False)
    assert world.git.log(REF) == [f"first on {REF}"]


@pytest.mark.parametrize(
    ("expected", "dies_at", "planned", "meddle"),
    [
        (Classification.ROLLED_PAST_EXPECTED, _AFTER, True, lambda git: None),
        (Classification.NO_MOVEMENT, _BEFORE, True, lambda git: None),
        (Classification.UNEXPECTED_AT_P1, _AFTER, False, lambda git: None),
        (Classification.UNEXPECTED_AT_P1, _BEFORE, True, lambda git: git.advance(REF, "foreign")),
        (Classification.UNEXPECTED_MULTISTEP, _AFTER, True, lambda git: git.advance(REF, "more")),
        (Classification.INVARIANT_VIOLATION, _AFTER, True, lambda git: git.delete(REF)),
        (
            Classification.INVARIANT_VIOLATION,
            _AFTER,
            True,
            lambda git: git.rewrite(REF, git.commit("unrelated")),
        ),
    ],
)
def test_o09_each_class_of_a_dead_owner_is_decided_as_the_table_says(
    catalog_url: str,
    tmp_path: Path,
    expected: Classification,
    dies_at: Failpoint,
    planned: bool,
    meddle: Callable[[GitRefs], object],
) -> None:
    world = new_world(catalog_url, tmp_path)
    assert_killed(effects.own, world, dies_at, 1, planned)
    meddle(world.git)
    with world.open() as store:
        expire_leases(store)
        [intent] = store.database.read(list_intents)
        head, before = world.head(), everything(store)
        recovered = store.recover()
        if expected is Classification.ROLLED_PAST_EXPECTED:
            assert recovered.rolled_forward == [intent.operation]
            assert (world.head(), shown(store)) == (head, [NEW] * 3)
        elif expected is Classification.NO_MOVEMENT:
            assert recovered.rolled_back == [intent.operation]
            assert (world.head(), shown(store)) == (head, [OLD] * 3)
        else:
            assert recovered.kept == [{"operation": intent.operation, "why": expected}]
            assert (world.head(), everything(store)) == (head, before)
            _check_blocked(store, DATASETS)
        assert_store_sound(store)


@pytest.mark.parametrize("damage", ["{", '{"kind": "merge"}'])
def test_o09_corrupt_intent_blocks_its_branches_only(
    catalog_url: str, tmp_path: Path, damage: str
) -> None:
    world = new_world(catalog_url, tmp_path)
    assert_killed(effects.own, world, _BEFORE)
    with world.open() as store:
        store.database.write(lambda c: c.execute(update(intents).values(body=damage)))
        expire_leases(store)
        assert [kept["why"] for kept in store.recover().kept] == ["it cannot be read"]
        _check_blocked(store, DATASETS)
        free = store.dataset(DATASETS[0]).branch("free").create(parent="master")
        put(free, free="1")
        elsewhere = files_branch(store, "raw.elsewhere")
        put(elsewhere, x="1")
        assert content(elsewhere) == {"x": "1"}
        assert_store_sound(store)


def test_o09_server_only_rolls_forward(catalog_url: str, tmp_path: Path) -> None:
    world = new_world(catalog_url, tmp_path)
    assert_killed(effects.own, world, _BEFORE)
    with world.open() as store:
        expire_leases(store)
        [kept] = recover(store.database, store.outside, forward_only=True).kept
        assert kept["why"] == "a server only rolls forward"
        assert len(store.recover().rolled_back) == 1


def test_o09_server_keeps_what_the_door_refuses_and_the_next_recovery_need_not_wait(
    catalog_url: str, tmp_path: Path
) -> None:
    """Rolling forward is refused, since the attempt was superseded; a server does not undo."""
    world = new_world(catalog_url, tmp_path)
    with world.open() as store:
        attempt = dispatch_attempt(store.database, "job", actor="olga", lease_seconds=60).ref
        with calling_at(_AFTER, _crash), pytest.raises(_Crashed):
            effect = world.git.planned_effect(REF, "effect")
            effects.operate(store, [effect], attempt=attempt)
        dispatch_attempt(store.database, "job", actor="olga", lease_seconds=60)
        expire_leases(store)
        [kept] = recover(store.database, store.outside, forward_only=True).kept
        assert "may no longer publish" in kept["why"]
        assert world.git.log(REF)[0] == "effect"
        assert len(store.recover().rolled_back) == 1
        assert (world.git.log(REF), shown(store)) == ([f"first on {REF}"], [OLD] * 3)
        assert_store_sound(store)


class _Crashed(Exception):
    """Not an error of Headgate's: nobody compensates, as after a power cut."""


def _crash() -> None:
    raise _Crashed


def test_o09_dry_run_says_what_it_would_do_and_does_nothing(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    assert_killed(effects.own, world, _AFTER)
    with world.open() as store:
        expire_leases(store)
        before = everything(store)
        assert len(store.recover(dry_run=True).rolled_forward) == 1
        assert everything(store) == before


def test_o09_outside_that_does_not_answer_keeps_the_intent_and_the_store_usable(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    assert_killed(effects.own, world, _AFTER)
    with world.open() as store:
        expire_leases(store)
        store.outside[KIND] = Silent(world.git.repository)
        [kept] = store.recover().kept
        assert "does not answer" in kept["why"]
        store.outside[KIND] = world.git
        assert len(store.recover().rolled_forward) == 1
        assert_store_sound(store)


class Silent(GitRefs):
    """The repository's server is down."""

    def find_head(self, target: Mapping[str, str]) -> str | None:
        raise Unavailable("the outside does not answer.")


def _operate_superseded(
    store: Store,
    git: GitRefs,
    *,
    refs: tuple[str, ...] = (REF,),
    planned: bool = True,
    then: Callable[[], object] = lambda: None,
) -> None:
    """An operation whose attempt is superseded after its last effect, so the door refuses it."""
    old = dispatch_attempt(store.database, "job", actor="olga", lease_seconds=60)
    make = git.planned_effect if planned else git.unplanned_effect

    def overtake() -> None:
        dispatch_attempt(store.database, "job", actor="olga", lease_seconds=60)
        then()

    with calling_at(Failpoint.INTENT_CONFIRMED, overtake, nth=len(refs)):
        effects.operate(store, [make(ref, "effect") for ref in refs], attempt=old.ref)


def _check_blocked(store: Store, names: tuple[str, ...]) -> None:
    for name in names:
        with pytest.raises(IntentPending):
            put(store.dataset(name).branch("master"), other="x")
