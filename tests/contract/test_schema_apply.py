"""`schema apply` on a branch: changes, validation of existing rows, and unchanged parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ConstraintsViolated, ImpossibleSchemaChange, InvalidSchemaFile
from headgate.model.nouns import TransactionType
from headgate.store.embedded import Store
from headgate.tables.constraints import constraints_of
from headgate.tables.inspect import columns_of, partitioning_of
from headgate.tables.metadata import Metadata
from tests.support.rows import (
    GRAPH,
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    publications,
    rows_of,
    table_store,
)
from tests.support.stores import load


def _metadata(store: Store, name: str, branch: str = "master") -> Metadata:
    view = store.dataset(name).branch(branch).load().view
    assert view is not None
    version = load(store, view).version
    assert version is not None
    return store.tables.read(version.location).metadata


def _one(columns: str, more: str = "") -> str:
    return f'[dataset."shop.item"]\ncolumns = {{{columns}}}\n{more}\n'


def test_schema_apply_makes_all_tables_in_one_publication(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        [publication] = publications(store)
        assert {str(m.dataset) for m in publication.moves} == {PERSON, KNOWS}
        assert partitioning_of(_metadata(store, PERSON)) == ["bucket(2, id)"]
        assert constraints_of(_metadata(store, KNOWS)).cardinality[0].max == 3
        again = apply_text(store, GRAPH)
        assert (again.publication, any(again.steps.values())) == (None, False)
        assert len(publications(store)) == 1


def test_schema_plan_changes_nothing(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        path = tmp_path / "more.toml"
        path.write_text(_one('id = "int"'))
        planned = store.rows.plan_schema(path, branch="master")
        assert planned.steps == {"shop.item": ("create (id int)",)}
        assert not store.dataset("shop.item").exists()


def test_schema_apply_renames_widens_adds_and_drops_and_keeps_identity(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        apply_text(store, _one('id = "int", name = "string", old = "int"', 'key = ["id"]'))
        store.mutate("master", "insert into shop.item values (1, 'a', 5)")
        before = {f["name"]: f["id"] for f in _metadata(store, "shop.item")["schemas"][0]["fields"]}
        apply_text(
            store,
            _one(
                'id = "long", title = {type = "string", renamed_from = "name"}, '
                'stock = {type = "int", required = true, default = 3}',
                'key = ["id"]',
            ),
        )
        assert rows_of(store, "shop.item") == [{"id": 1, "title": "a", "stock": 3}]
        metadata = _metadata(store, "shop.item")
        [schema] = [
            s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]
        ]
        after = {f["name"]: f["id"] for f in schema["fields"]}
        assert (after["id"], after["title"]) == (before["id"], before["name"])
        store.mutate("master", "insert into shop.item (id, title) values (2, 'b')")
        assert rows_of(store, "shop.item")[1] == {"id": 2, "title": "b", "stock": 3}


def test_schema_apply_leaves_other_branches_alone(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        store.dataset(PERSON).branch("feature").create(parent="master")
        more = 'columns = {id = "string", name = "string", mail = "string"}\nkey = ["id"]'
        apply_text(store, f'[dataset."{PERSON}"]\n{more}', branch="feature")
        assert [c.name for c in columns_of(_metadata(store, PERSON))] == ["id", "name", "age"]
        assert rows_of(store, PERSON, "feature") == [{"id": "a", "name": "A", "mail": None}]
        store.mutate("master", "insert into graph.person (id) values ('b')")


def test_schema_apply_on_a_chain_forks_the_branch(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        text = GRAPH.replace('name = "string"', 'name = {type = "string", required = true}')
        applied = apply_text(store, text, branch="feature>master")
        assert applied.publication is not None
        assert rows_of(store, PERSON, "feature") == rows_of(store, PERSON)
        assert store.dataset(PERSON).branch("feature").load().parent == "master"


def test_schema_apply_on_a_branch_that_lacks_the_table_makes_no_twin(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        # The branch exists, on another dataset.
        store.dataset("raw.scans").create(kind="files", branch="feature", create=True)
        with pytest.raises(ImpossibleSchemaChange, match="feature>master"):
            apply_text(store, GRAPH, branch="feature")
        renamed = GRAPH.replace(
            f'[dataset."{PERSON}"]', f'[dataset."{PERSON}s"]\nrenamed_from = "{PERSON}"'
        )
        with pytest.raises(ImpossibleSchemaChange, match=f"{PERSON} is not on 'feature'"):
            apply_text(store, renamed, branch="feature")
        assert {b.name for b in store.branches() if b.dataset.name != "scans"} == {"master"}
        # Made by hand, a root stays possible.
        store.dataset(PERSON).branch("feature").create()
        store.dataset(KNOWS).branch("feature").create()
        apply_text(store, GRAPH, branch="feature")
        assert rows_of(store, PERSON, "feature") == []


def test_schema_apply_of_a_table_that_every_branch_dropped_creates_it_again(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with table_store(made_sqlite_url, tmp_path, "shop.item", {"x": "int"}) as store:
        renamed = _one('id = "long", x = "int"', 'renamed_from = "shop.item"\nkey = ["id"]')
        apply_text(store, renamed.replace('dataset."shop.item"', 'dataset."shop.thing"'))
        store.dataset("raw.scans").create(kind="files", branch="other", create=True)
        apply_text(store, _one('id = "long"'), branch="other")
        assert [c.name for c in columns_of(_metadata(store, "shop.item", "other"))] == ["id"]


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ('id = "int", x = {type = "int", required = true}', "", "no value"),
        ('id = "int", x = "int"', 'key = ["id"]', "the key id = 1"),
        ('id = "int", x = "int"', 'unique = [["id"]]', "unique value id = 1"),
        ('id = {type = "int", enum = [2]}, x = "int"', "", "not one of"),
        ('id = "int", x = "int"', 'cardinality = [{per = "id", max = 1}]', "at most 1"),
        (
            'id = "int", x = "int", p = "string"',
            f'references = [{{column = "p", dataset = "{PERSON}"}}]',
            None,
        ),
    ],
)
def test_schema_apply_validates_rows_that_are_there_first(
    made_catalog_url: str, tmp_path: Path, columns: str, more: str, words: str | None
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        apply_text(store, _one('id = "int", x = "int"'))
        store.mutate("master", "insert into shop.item values (1, null), (1, null)")
        count = len(publications(store))
        if words is None:
            apply_text(store, _one(columns, more))
            return
        with pytest.raises(ConstraintsViolated, match=words):
            apply_text(store, _one(columns, more))
        assert len(publications(store)) == count


@pytest.mark.parametrize(
    ("columns", "more", "error"),
    [
        ('id = "string"', "", ImpossibleSchemaChange),
        ('id = "int", y = {type = "int", required = true}', "", ImpossibleSchemaChange),
        ('id = "int"', 'references = [{column = "id", dataset = "no.where"}]', InvalidSchemaFile),
    ],
)
def test_schema_apply_of_the_impossible_is_refused(
    made_catalog_url: str, tmp_path: Path, columns: str, more: str, error: type[Exception]
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        apply_text(store, _one('id = "int"'))
        store.mutate("master", "insert into shop.item values (1)")
        with pytest.raises(error):
            apply_text(store, _one(columns, more))


def test_schema_apply_of_a_reference_to_a_missing_table_names_the_nearest(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        text = GRAPH.replace('dataset = "graph.person"', 'dataset = "graph.persn"')
        words = r"Table does not exist: graph\.persn on master\. Did you mean 'graph\.person'"
        with pytest.raises(InvalidSchemaFile, match=words):
            apply_text(store, text)


def test_schema_apply_renames_a_dataset_and_references_follow(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        people = GRAPH.split('[dataset."graph.knows"]')[0].replace(PERSON, "graph.human")
        applied = apply_text(store, people + f'renamed_from = "{PERSON}"\n')
        assert applied.publication == len(publications(store))
        assert rows_of(store, PERSON) == []
        assert [r["id"] for r in rows_of(store, "graph.human")] == ["a", "b"]
        store.mutate("master", "delete from graph.human where id = 'a'")
        assert rows_of(store, KNOWS) == []
        _, renamed, *earlier = store.dataset("graph.human").branch("master").history()
        assert renamed.type is TransactionType.SNAPSHOT
        assert {str(one.dataset) for one in earlier} == {PERSON}


def test_schema_apply_renames_tables_that_refer_to_each_other(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        renamed = GRAPH.replace(PERSON, "graph.human").replace(KNOWS, "graph.meets")
        for new, old in (("graph.human", PERSON), ("graph.meets", KNOWS)):
            head = f'[dataset."{new}"]\n'
            renamed = renamed.replace(head, f'{head}renamed_from = "{old}"\n')
        assert apply_text(store, renamed).publication is not None
        assert apply_text(store, renamed).publication is None
        store.mutate("master", "delete from graph.human where id = 'a'")
        assert rows_of(store, "graph.meets") == []
        with pytest.raises(InvalidSchemaFile, match="is renamed in this file"):
            apply_text(
                store,
                renamed.replace('"graph.human"]', '"graph.one"]').replace(PERSON, "graph.human"),
            )


def test_schema_apply_renames_two_datasets_and_both_references_of_a_table_follow(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    targets = '[dataset."shop.a"]\n{a}{key}[dataset."shop.b"]\n{b}{key}'
    key = 'columns = {id = "int"}\nkey = ["id"]\n'
    link = (
        '[dataset."shop.link"]\ncolumns = {a = "int", b = "int"}\nreferences = ['
        '{column = "a", dataset = "shop.a"}, {column = "b", dataset = "shop.b"}]\n'
    )
    with graph_store(made_sqlite_url, tmp_path) as store:
        apply_text(store, targets.format(a="", b="", key=key) + link)
        renamed = targets.replace("shop.a", "shop.x").replace("shop.b", "shop.y")
        renamed = renamed.format(
            a='renamed_from = "shop.a"\n', b='renamed_from = "shop.b"\n', key=key
        )
        apply_text(store, renamed)
        references = constraints_of(_metadata(store, "shop.link")).references
        assert [reference.dataset for reference in references] == ["shop.x", "shop.y"]


def test_schema_apply_of_a_key_on_a_foreign_table_makes_it_updatable(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        apply_text(store, _one('id = "int", x = "int"'))
        store.mutate("master", "insert into shop.item values (1, 1), (2, 2)")
        apply_text(store, _one('id = "int", x = "int"', 'key = ["id"]'))
        store.mutate("master", "upsert into shop.item values (2, 20), (3, 30)")
        assert [r["x"] for r in rows_of(store, "shop.item")] == [1, 20, 30]
