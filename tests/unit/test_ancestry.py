"""Ancestry rule: every line of its table, and properties that hold for any ancestry."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.errors import AncestryViolated, InvalidChain
from headgate.model.ancestry import (
    BranchRecord,
    Lineage,
    after_deletion,
    ancestors_of,
    first_bad_pair,
    make_chain,
    output_place,
    require_compatible,
)
from headgate.model.names import parse_dataset_name

NAMES = ["feature", "develop", "master", "trunk", "other"]


def branches(*lines: str) -> dict[str, BranchRecord]:
    """Parse `feature<develop`, `master` (a root) and `feature~develop,master` (remembered)."""
    found: list[BranchRecord] = []
    for line in lines:
        name, _, remembered = line.partition("~")
        name, _, parent = name.partition("<")
        chain = tuple(remembered.split(",")) if remembered else ()
        found.append(Lineage(name=name, parent=parent or None, remembered_chain=chain))
    return {branch.name: branch for branch in found}


@pytest.mark.parametrize(
    ("lines", "chain"),
    [
        (["master"], "feature master"),
        (["feature<master", "master"], "feature master"),
        (["feature<develop", "develop<master", "master"], "feature develop master"),
        (["feature<develop", "develop<master", "master"], "feature master"),
        (["develop<master", "master"], "feature develop master"),
        (["feature<master", "master"], "feature develop master"),
        (["feature<master", "master"], "feature unknown master nobody"),
        ([], "feature develop master"),
        (["feature~develop,master", "master"], "feature develop master"),
        (["feature~develop,master", "develop<master", "master"], "feature develop master"),
        (["feature~develop", "develop<master", "master"], "feature master"),
        (["feature~master", "master<feature"], "feature master"),
        (["feature~master", "master<feature"], "master feature"),
    ],
)
def test_chain_that_follows_the_ancestry_is_accepted(lines: list[str], chain: str) -> None:
    assert first_bad_pair(chain.split(), branches(*lines)) is None


@pytest.mark.parametrize(
    ("lines", "chain", "pair"),
    [
        (
            ["feature<develop", "develop<master", "master"],
            "feature master develop",
            "master develop",
        ),
        (["feature<master", "develop<master", "master"], "feature develop master", None),
        (["feature", "master"], "feature master", None),
        (["feature<master", "master"], "master feature", None),
        (["develop<master", "master"], "feature master develop", "master develop"),
        (["feature~develop", "master"], "feature master", None),
        (["feature~master", "master"], "master feature", None),
    ],
)
def test_chain_against_the_ancestry_names_the_first_bad_pair(
    lines: list[str], chain: str, pair: str | None
) -> None:
    expected = (pair or " ".join(chain.split()[:2])).split()
    assert first_bad_pair(chain.split(), branches(*lines)) == tuple(expected)


def test_name_twice_in_the_chain_is_invalid() -> None:
    with pytest.raises(InvalidChain, match="'feature' twice"):
        make_chain("feature", ["x", "feature"])


def test_violation_names_dataset_chain_ancestry_pair_and_cure() -> None:
    siblings = branches("feature<master", "develop<master", "master")
    with pytest.raises(AncestryViolated) as caught:
        require_compatible(parse_dataset_name("s.c"), ("feature", "develop", "master"), siblings)
    assert caught.value.facts == {
        "dataset": "s.c",
        "chain": ["feature", "develop", "master"],
        "ancestry": ["feature", "master"],
        "pair": ["feature", "develop"],
    }
    assert "headgate branch reparent s.c feature --under develop" in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "exists", "parent", "remembered"),
    [
        (["master"], False, "master", ()),
        (["develop<master", "master"], False, "develop", ()),
        (["feature<master", "master"], True, "master", ()),
        ([], False, None, ("develop", "master")),
    ],
)
def test_output_lands_on_the_build_branch_off_the_first_fallback_there_is(
    lines: list[str], exists: bool, parent: str | None, remembered: tuple[str, ...]
) -> None:
    place = output_place(("feature", "develop", "master"), branches(*lines))
    assert place.branch == "feature"
    assert (place.exists, place.parent) == (exists, parent)
    assert place.remembered_chain == remembered


def test_new_dataset_built_on_feature_then_on_master_works_on_feature_again() -> None:
    place = output_place(("feature", "master"), {})
    root = Lineage(name="feature", remembered_chain=place.remembered_chain)
    assert (
        first_bad_pair(["feature", "master"], {"feature": root, "master": Lineage(name="master")})
        is None
    )


def test_children_of_a_deleted_root_remember_what_it_remembered() -> None:
    before = branches("x<feature", "feature~master", "master")
    after = after_deletion("feature", before)
    assert after["x"] == Lineage(name="x", remembered_chain=("master",))
    assert first_bad_pair(["x", "feature", "master"], after) is None


@st.composite
def ancestries(draw: st.DrawFn) -> dict[str, BranchRecord]:
    """Draw any forest over some of the names; roots may remember any names."""
    order = draw(st.permutations(NAMES))
    present = order[: draw(st.integers(0, len(order)))]
    found: list[BranchRecord] = []
    for position, name in enumerate(present):
        parent = draw(st.sampled_from([None, *present[:position]]))
        others = [other for other in NAMES if other != name]
        remembered = draw(st.lists(st.sampled_from(others), unique=True)) if not parent else []
        found.append(Lineage(name=name, parent=parent, remembered_chain=tuple(remembered)))
    return {branch.name: branch for branch in found}


chains = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


@given(ancestries(), chains, st.data())
def test_dropping_a_fallback_keeps_a_chain_compatible(
    found: dict[str, BranchRecord], chain: list[str], data: st.DataObject
) -> None:
    assume(len(chain) > 1 and first_bad_pair(chain, found) is None)
    dropped = data.draw(st.sampled_from(chain[1:]))
    assert first_bad_pair([name for name in chain if name != dropped], found) is None


@given(ancestries(), chains)
def test_creating_the_output_branch_keeps_a_chain_compatible(
    found: dict[str, BranchRecord], chain: list[str]
) -> None:
    assume(first_bad_pair(chain, found) is None)
    place = output_place(chain, found)
    assume(not place.exists)
    made = Lineage(name=chain[0], parent=place.parent, remembered_chain=place.remembered_chain)
    after = {**found, chain[0]: made}
    assert first_bad_pair(chain, after) is None
    assert output_place(chain, after).exists


@given(ancestries(), chains, st.data())
def test_deleting_a_branch_keeps_a_chain_compatible(
    found: dict[str, BranchRecord], chain: list[str], data: st.DataObject
) -> None:
    assume(found and first_bad_pair(chain, found) is None)
    deleted = data.draw(st.sampled_from(sorted(found)))
    assert first_bad_pair(chain, after_deletion(deleted, found)) is None


@given(ancestries(), chains, st.sampled_from([None, *NAMES]))
def test_branch_outside_the_chain_that_nobody_remembers_changes_nothing(
    found: dict[str, BranchRecord], chain: list[str], parent: str | None
) -> None:
    assume(parent is None or parent in found)
    after = {**found, "bystander": Lineage(name="bystander", parent=parent)}
    assert first_bad_pair(chain, after) == first_bad_pair(chain, found)


@given(ancestries())
def test_ancestors_never_include_the_branch_itself(found: dict[str, BranchRecord]) -> None:
    for name in found:
        above = ancestors_of(name, found)
        assert name not in above
        assert len(above) == len(set(above))


def test_chain_in_the_wrong_order_is_not_to_be_mended_by_a_parent_below() -> None:
    with pytest.raises(AncestryViolated, match="'feature' descends from 'master'") as refused:
        require_compatible(
            parse_dataset_name("sales.c"),
            ("master", "feature"),
            branches("feature<master", "master"),
        )
    assert "reparent" not in refused.value.message
