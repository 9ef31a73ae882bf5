"""`headgate plan --graph` on a real catalog: marks, branches and formats."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from headgate.connection import open as open_store
from headgate.model.graph import Graph
from headgate.store.embedded import Store
from tests.support.cli import Cli, new_store_cli
from tests.support.pipelines import build, files_spec, publish
from tests.support.repositories import new_repository
from tests.support.stores import new_store


def _fill(store: Store) -> None:
    """Publish A and B on master; C is new on feature, and B has different logic there."""
    publish(store, "master", files_spec("s.a"), files_spec("s.b", "s.a"))
    build(store, "s.b")
    changed = files_spec("s.b", "s.a", logic="2")
    publish(store, "feature", files_spec("s.a"), changed, files_spec("s.c", "s.b"))


def _graph(store: Store) -> Graph:
    plan = store.decide(["s.c"], branch="feature", fallback=["master"], upstream=True)
    return store.graph(plan)


def test_graph_on_each_database_marks_what_the_primary_branch_makes(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        _fill(store)
        told = [(str(n.dataset), n.branch, n.mark, n.status) for n in _graph(store).nodes]
    assert told == [
        ("s.a", "master", "blue", "skipped (fresh)"),
        ("s.b", "feature", "blue", "waiting (stale-logic)"),
        ("s.c", "feature", "gray", "waiting (never-built)"),
    ]


def test_graph_after_a_dataset_was_removed_from_the_primary_branch_is_gray(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        _fill(store)
        publish(store, "master", files_spec("s.a"))
        assert [str(node.mark) for node in _graph(store).nodes] == ["blue", "gray", "gray"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = new_store_cli(tmp_path, monkeypatch, capsys)
    with open_store(tmp_path) as store:
        _fill(store)
    return made


_WORDS = ("plan", "s.c", "-b", "feature", "--upstream", "--graph")


@pytest.mark.parametrize(
    ("format", "beginning", "told"),
    [
        ("tree", "chain feature > master\n", "□ s.c [files]  on feature  waiting (never-built)"),
        ("mermaid", "flowchart LR\n", "n0 --> n1"),
        ("dot", "digraph plan {\n", "n0 -> n1"),
        ("svg", "<svg ", "</svg>"),
    ],
)
def test_plan_with_each_graph_format_prints_it_alone(
    cli: Cli, format: str, beginning: str, told: str
) -> None:
    said = cli.ok(*_WORDS, format)
    assert said.out.startswith(beginning) and told in said.out
    assert said.err == ""


def test_plan_with_a_graph_and_json_is_one_document_with_both(cli: Cli) -> None:
    document = cli.json(*_WORDS, "svg")
    assert [job["outputs"] for job in document["jobs"]] == [["s.a"], ["s.b"], ["s.c"]]
    assert document["graph"]["format"] == "svg"
    assert [node["mark"] for node in document["graph"]["nodes"]] == ["blue", "blue", "gray"]
    assert ElementTree.fromstring(document["graph"]["text"]).attrib["role"] == "img"


def test_plan_without_a_graph_has_none_in_its_json(cli: Cli) -> None:
    assert "graph" not in cli.json("plan", "s.c", "-b", "feature", "--upstream")


def test_plan_with_an_unknown_graph_format_is_bad_usage(cli: Cli) -> None:
    assert cli(*_WORDS, "pdf").code == 2


def test_plan_takes_fallbacks_one_by_one_and_asks_for_a_branch_where_none_is_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = new_repository(tmp_path)
    work.write(a="")
    work.commit("one")
    cli = new_store_cli(tmp_path, monkeypatch, capsys)
    with open_store() as store:
        _fill(store)
    one_by_one = ("--fallback", "develop", "--fallback", "master,trunk")
    chain = cli.json("plan", "s.b", "-b", "feature", *one_by_one)
    assert chain["fallback"] == ["develop", "master", "trunk"]
    work.git("checkout", "--quiet", "--detach")
    assert cli.error("plan", "s.b", code=2) == "git"
    assert cli.json("plan", "s.b", "-b", "master")["branch"] == "master"
