"""Options by name: a misspelled or missing one is rejected before any effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.builds.plan import PlanOptions, plan_request
from headgate.settings import BuildSettings
from tests.support.rows import graph_store, insert_people


def test_options_of_a_plan_that_are_misspelt_or_missing_are_refused() -> None:
    misspelt: dict[str, Any] = {"branch": "master", "atmoic": True}
    with pytest.raises(TypeError, match="'atmoic'; did you mean 'atomic'"):
        plan_request(["a.b"], misspelt, builds=BuildSettings())  # type: ignore[arg-type]
    missing: dict[str, Any] = {"upstream": True}
    with pytest.raises(TypeError, match="'branch' is missing"):
        plan_request(["a.b"], missing, builds=BuildSettings())  # type: ignore[arg-type]


def test_options_of_a_mutation_that_are_misspelt_are_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    misspelt: dict[str, Any] = {"idempotence_key": "k"}
    with graph_store(made_sqlite_url, tmp_path) as store:
        with pytest.raises(TypeError, match="did you mean 'idempotency_key'"):
            store.mutate("master", insert_people("a"), **misspelt)
        assert store.mutate("master", insert_people("a")).publication is not None


@pytest.mark.parametrize("given", [None, "master", " master, ", ["master"], ("master",)])
def test_fallback_of_a_plan_is_the_primary_branch_where_nobody_named_another(given: Any) -> None:
    asked: PlanOptions = {"branch": "feature", "fallback": given}
    request = plan_request("a.b", asked, builds=BuildSettings())
    assert (request.targets, request.fallback) == (("a.b",), ("master",))
    assert plan_request(["a.b"], {"branch": "master"}, builds=BuildSettings()).fallback == ()


def test_fallback_of_a_plan_is_as_configured_or_none_where_an_empty_list_was_given() -> None:
    configured = BuildSettings(fallback=("develop", "master"))
    names = [
        plan_request(["a.b"], {"branch": branch}, builds=configured).fallback
        for branch in ("feature", "develop")
    ]
    assert names == [("develop", "master"), ("master",)]
    empty = plan_request(["a.b"], {"branch": "feature", "fallback": []}, builds=configured)
    assert empty.fallback == ()


def test_targets_in_one_text_are_told_apart_by_commas_outside_of_backticks() -> None:
    asked: PlanOptions = {"branch": "master"}
    request = plan_request("a.b, c.`d,e`", asked, builds=BuildSettings())
    assert request.targets == ("a.b", "c.`d,e`")
