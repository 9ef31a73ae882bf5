"""Input and result of an attempt, and their form for Conductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, computed_field

from headgate.errors import InvalidTaskInput, InvalidTaskResult
from headgate.tasks import PublishBudget, TaskControls, TimeoutPolicy, WorkspaceSpec, task
from headgate.tasks.declare import DEFINITION, TaskDefinition
from headgate.tasks.definitions import make_taskdef, response_seconds, warnings_of
from headgate.tasks.ports import read_input, read_result, write_output


class Inner(BaseModel):
    size: int = 1


class Params(BaseModel):
    word: str
    inner: Inner = Inner()


class Node(BaseModel):
    name: str
    below: list[Node] = []


class Result(BaseModel):
    row_count: int = Field(alias="rowCount")
    title: str = "t"
    tree: Node | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.row_count


class Plain(BaseModel):
    n: int


def _defined(**more: Any) -> TaskDefinition:
    @task(name="t", owner_email="a@b.c", workspace=WorkspaceSpec(), **more)
    def body(workspace: Path, params: Params) -> Result:
        return Result(rowCount=1)

    found: TaskDefinition = getattr(body, DEFINITION)
    return found


def _ref(**changed: object) -> dict[str, object]:
    return {"repository": "a.b", "branch": "m", "ref_type": "commit", "ref": "t-1", **changed}


def _input(**changed: object) -> dict[str, object]:
    return {"workspace": _ref(), "params": {"word": "hi"}, **changed}


@pytest.mark.parametrize("spelling", ["ref_type", "refType"])
def test_input_in_either_spelling_is_answered_alike(spelling: str) -> None:
    workspace = {"repository": "a.b", "branch": "m", spelling: "commit", "ref": "t-1"}
    found = read_input(_defined(), _input(workspace=workspace))
    assert found.workspace is not None
    output = write_output(found.workspace.at("t-2"), {"n": 1})
    assert output == {"workspace": {**workspace, "ref": "t-2"}, "result": {"n": 1}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "null, not an object"),
        ({"params": {}}, "'workspace' is missing"),
        ({"workspace": _ref()}, "'params' is missing"),
        (_input(workspace=_ref(ref_type="branch")), "it must be 'commit'"),
        (_input(workspace=_ref(refType="commit")), "both ref_type and refType"),
        (_input(workspace=_ref(ref=" ")), "workspace.ref is missing or empty"),
        (_input(workspace=_ref(more=1)), "unknown keys more"),
        (_input(params={"inner": {"size": "x"}}), "params: word: Field required; inner.size"),
        (_input(params=[]), "params is a list"),
    ],
)
def test_input_of_another_shape_says_what_is_wrong(data: object, said: str) -> None:
    with pytest.raises(InvalidTaskInput) as refused:
        read_input(_defined(), data)
    assert said in refused.value.message


def test_input_with_unknown_keys_is_told_or_refused() -> None:
    data = _input(extra=1, params={"word": "hi", "more": 1, "inner": {"size": 2, "odd": 3}})
    assert read_input(_defined(), data).ignored == ("extra",)
    with pytest.raises(InvalidTaskInput, match="unknown keys 'extra'"):
        read_input(_defined(strict_input=True), data)
    with pytest.raises(InvalidTaskInput, match=r"inner\.odd: Extra inputs"):
        read_input(_defined(strict_params=True), data)


def test_input_error_never_repeats_a_value() -> None:
    with pytest.raises(InvalidTaskInput) as refused:
        read_input(_defined(), _input(params={"word": "x", "inner": {"size": "s3cret"}}))
    assert "s3cret" not in refused.value.message


@pytest.mark.parametrize(
    "returned",
    [
        Result(rowCount=2, tree=Node(name="a", below=[Node(name="b")])),
        {"rowCount": 2, "tree": {"name": "a", "below": [{"name": "b"}]}},
        {"row_count": 2, "tree": {"name": "a", "below": [{"name": "b"}]}},
    ],
)
def test_result_has_aliases_computed_fields_and_recursion(returned: object) -> None:
    assert read_result(_defined(), returned) == {
        "rowCount": 2,
        "title": "t",
        "tree": {"name": "a", "below": [{"name": "b", "below": []}]},
        "twice": 4,
    }


@pytest.mark.parametrize(
    "returned",
    [None, 3, {"rowCount": "x"}, {"rowCount": 1, "odd": 2}, Result.model_construct(), Plain(n=1)],
)
def test_result_of_another_shape_is_refused(returned: object) -> None:
    with pytest.raises(InvalidTaskResult, match="does not fit its result model"):
        read_result(_defined(), returned)


def test_taskdef_has_the_schemas_in_place_and_recursive_parts_beside() -> None:
    made = make_taskdef(_defined(strict_params=True))
    sent = made["inputSchema"]["data"]["properties"]["params"]
    assert sent["properties"]["inner"]["properties"] == {"size": {"default": 1, "type": "integer"}}
    assert sent["additionalProperties"] is False
    answer = made["outputSchema"]["data"]
    assert set(answer["properties"]["result"]["properties"]) == {
        "rowCount",
        "title",
        "tree",
        "twice",
    }
    assert answer["$defs"]["Node"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Node"}
    assert list(made)[:3] == ["name", "ownerEmail", "retryCount"]
    assert made["inputKeys"] == ["workspace", "params"]


def test_taskdef_counts_the_budgets_reserve_and_warns_where_it_was_forgotten() -> None:
    short = TaskControls(timeout=TimeoutPolicy(response_seconds=60), publish_budget=_budget())
    assert response_seconds(_defined(controls=short)) == 100
    [told] = warnings_of(_defined(controls=short))
    assert "60" in told and "100" in told
    enough = TaskControls(timeout=TimeoutPolicy(response_seconds=300), publish_budget=_budget())
    assert response_seconds(_defined(controls=enough)) == 300
    assert warnings_of(_defined(controls=enough)) == []


@pytest.mark.parametrize(
    ("timeout", "budgeted", "used", "told"),
    [
        # Only the whole timeout is set: no message about the default of the other.
        (TimeoutPolicy(seconds=5), False, 4, None),
        (TimeoutPolicy(seconds=1), False, 1, None),
        (TimeoutPolicy(seconds=60, response_seconds=60), False, 59, "not less than seconds"),
        (TimeoutPolicy(seconds=90), True, 89, "needs 100 s, more than seconds"),
        (TimeoutPolicy(seconds=900), True, 600, None),
    ],
)
def test_taskdef_keeps_the_response_timeout_below_the_whole_one(
    timeout: TimeoutPolicy, budgeted: bool, used: int, told: str | None
) -> None:
    budget = _budget() if budgeted else None
    defined = _defined(controls=TaskControls(timeout=timeout, publish_budget=budget))
    assert response_seconds(defined) == used
    assert [told in warning for warning in warnings_of(defined) if told] == [True] * bool(told)


def _budget() -> PublishBudget:
    return PublishBudget(
        observed_merge_p99_seconds=20,
        safety_margin_seconds=10,
        lakefs_merge_timeout_seconds=45,
        conductor_completion_timeout_seconds=15,
        worker_shutdown_grace_seconds=30,
        heartbeat_interval_seconds=10,
    )
