"""The lineage page folds many datasets by namespace."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from headgate.model.access import Grant, Role
from headgate.model.jobspecs import JobSpec
from headgate.server.web.lineage_page import Namespace, fold, lineage_page
from headgate.server.web.page import Visit
from headgate.store.embedded import Store
from tests.support.graphs import graph_of
from tests.support.jobspecs import spec
from tests.support.pages import text_of
from tests.support.pipelines import files_spec, publish
from tests.support.stores import files_branch, new_store, put

_MANY = 260


def page(store: Store, address: str) -> str:
    grant = Grant(actor="ana", role=Role.READER)
    query = dict(parse_qsl(urlsplit(address).query))
    return text_of(lineage_page(Visit(store=store, grant=grant, query=query)))


def boxes(text: str) -> dict[str, str]:
    """Return the boxes of a drawing: descriptions, and where each leads."""
    found = re.findall(r'<a href="([^"]*)" class="node [^>]*aria-label="([^"]*)"', text)
    return {html.unescape(label): html.unescape(href) for href, label in found}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    root = tmp_path_factory.mktemp("folded")
    with new_store(f"sqlite:///{root}/catalog.db", root) as made:
        put(files_branch(made), a="1")
        raw = [files_spec(f"raw.t{at}", "raw.scans") for at in range(_MANY)]
        gold = [files_spec(f"`gold&1`.t{at}", f"raw.t{at}") for at in range(_MANY)]
        publish(made, "master", *raw, *gold, files_spec("one.only", "raw.t0"))
        yield made


def test_many_datasets_are_one_box_for_each_namespace_and_open_one_by_one(store: Store) -> None:
    folded = boxes(page(store, "/lineage"))
    assert set(folded) == {
        f"raw.*, {_MANY + 1} datasets: 1 source, {_MANY} stale",
        f"`gold&1`.*, {_MANY} datasets: {_MANY} stale",
        next(label for label in folded if label.startswith("one.only on master")),
    }
    [gold] = [href for label, href in folded.items() if "gold" in label]
    text = page(store, gold)
    opened = boxes(text)
    assert len(opened) == _MANY + 2
    assert any(label.startswith("`gold&1`.t7 on master: stale") for label in opened)
    [back] = re.findall(r'href="([^"]*)"[^>]*>Fold `gold&amp;1`<', text)
    assert boxes(page(store, html.unescape(back))) == folded
    assert len(page(store, "/lineage")) < 20_000 < len(text)
    assert "raw.*" in page(store, "/lineage?view=list")


def test_namespace_of_a_named_dataset_is_open(store: Store) -> None:
    labels = boxes(page(store, "/lineage?dataset=raw.scans"))
    assert any(label.startswith("raw.scans on master") for label in labels)
    near = boxes(page(store, "/lineage?dataset=raw.t7"))
    assert not any("*" in label for label in near), "few datasets are not folded"


def test_fold_keeps_edges_between_boxes_once() -> None:
    specs: list[JobSpec] = [spec("a.x"), spec("a.y", "a.x"), spec("b.x", "a.x"), spec("b.y", "a.y")]
    graph = graph_of(*specs, targets="b.x b.y")
    folded = fold(graph, (), str)
    assert [type(node) for node in folded.nodes] == [Namespace, Namespace]
    assert [(e.source, e.target) for e in folded.edges] == [(0, 1)]
    opened = fold(graph, ("a",), str)
    names = [str(n.dataset) if not isinstance(n, Namespace) else n.address for n in opened.nodes]
    edges = {(names[e.source], names[e.target]) for e in opened.edges}
    assert edges == {("a.x", "a.y"), ("a.x", "b"), ("a.y", "b")}
