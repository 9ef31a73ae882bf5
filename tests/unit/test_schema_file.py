"""Schema files: their content, and errors with the line."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidSchemaFile
from headgate.model.constraints import Cardinality, OnDelete, Reference
from headgate.rows.schema_file import parse_schema

_GOOD = """
[dataset."graph.person"]
key = ["id"]

[dataset."graph.person".columns]
id = "string"
age = {type = "int", required = true, default = 3, enum = [1, 3]}
tags = "list<string>"

[dataset."graph.knows"]
columns = {id = "long", src = "string", dst = "string"}
key = ["id"]
unique = [["src", "dst"]]
references = [{column = "src", dataset = "graph.person", on_delete = "cascade"}]
cardinality = [{per = "src", max = 5}]
"""


def test_schema_file_with_everything_is_read() -> None:
    person, knows = parse_schema(_GOOD, "graph.toml").datasets
    assert [(c.name, c.required) for c in person.columns] == [
        ("id", True),
        ("age", True),
        ("tags", False),
    ]
    assert person.constraints.enums == {"age": (1, 3)}
    assert person.constraints.defaults == {"age": 3}
    assert knows.constraints.unique == (("src", "dst"),)
    assert knows.constraints.cardinality == (Cardinality(per="src", max=5),)
    assert knows.constraints.references == (
        Reference(column="src", dataset="graph.person", on_delete=OnDelete.CASCADE),
    )


def test_schema_file_takes_values_as_toml_or_text_has_them() -> None:
    text = """[dataset."a.b".columns]
d = {type = "date", default = 2024-02-29}
at = {type = "timestamptz", default = 2024-01-01T10:00:00Z}
price = {type = "decimal(5,2)", default = "1.25"}
rate = {type = "decimal(5,2)", default = 0.5}
"""
    [spec] = parse_schema(text, "a.toml").datasets
    assert spec.constraints.defaults == {
        "d": "2024-02-29",
        "at": "2024-01-01T10:00:00+00:00",
        "price": "1.25",
        "rate": 0.5,
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = = 1", 1, "Invalid"),
        ("[tabel]", 1, "unknown table"),
        ("", 1, "no dataset"),
        ("\n[dataset.person]\nkey = []", 2, "quoted"),
        ('\n[dataset."a.b"]\nkey = ["x"]', 2, "no columns"),
        ('[dataset."a.b"]\ncolumns = {id = "strin"}', 2, "did you mean 'string'"),
        ('[dataset."a.b"]\ncolumns = {id = "bigint"}', 2, "did you mean 'long'"),
        ('[dataset."a.b".columns]\nid = "int"\nx = "decimal(40,2)"', 3, "38 digits"),
        ('[dataset."a.b"]\ncolumns = {id = "int"}\n\nkeys = ["id"]', 4, "did you mean 'key'"),
        ('[dataset."a.b"]\ncolumns = {id = "int"}\nkey = ["idd"]', 3, "did you mean 'id'"),
        ('[dataset."a.b"]\ncolumns = {id = "double"}\nkey = ["id"]', 3, "NaN"),
        ('[dataset."a.b"]\ncolumns = {id = {type = "int", default = "x"}}', 2, "not a value"),
        ('[dataset."a.b"]\ncolumns = {id = {type = "int", defualt = 1}}', 2, "'default'"),
        ('[dataset."a.b"]\ncolumns = {d = {type = "date", default = "soon"}}', 2, "not a value"),
        ('[dataset."a.b".columns]\nx = {type = "decimal(5,2)", default = "NaN"}', 2, "not a value"),
        ('[dataset."a.b"]\n\ncolums = {id = "int"}', 3, "did you mean 'columns'"),
        ('[dataset."a.b".columns]\nid = {type = "int", default = 4, enum = [1]}', 2, "enum"),
        ('[dataset."a.b"]\ncolumns = {i = "int"}\ncardinality = [{per = "i", max = 0}]', 3, "max"),
        (
            (
                '[dataset."a.b"]\ncolumns = {i = "int"}\n'
                'references = [{column = "i", dataset = "c.d", on_delete = "null"}]'
            ),
            3,
            "restrict or cascade",
        ),
        ('[dataset."a b"]\ncolumns = {i = "int"}', 1, "namespace"),
    ],
)
def test_schema_file_with_a_mistake_names_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InvalidSchemaFile, match=r"graph\.toml:") as refused:
        parse_schema(text, "graph.toml")
    assert refused.value.facts["line"] == line, refused.value
    assert words in str(refused.value)
