"""What a load by Spark says of bad rows: the same as one without Spark, with file and line.

Spark says of a bad row that there is one. Which it is, and which others there are, is found by
looking again: at the files, by the reader that names misfits, then at pictures of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headgate.model.constraints import Violation
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.mutations.ground import Ground
from headgate.mutations.load import LoadMode
from headgate.mutations.load_spark_checks import Neighbours
from headgate.mutations.load_spark_files import Places, refuse_misfits
from headgate.mutations.load_spark_tables import TableLoad, sql_name, version_of
from headgate.mutations.parts import Parts
from headgate.mutations.validating import refuse
from headgate.tables.scanning import TableScan
from headgate.tables.values import plain

if TYPE_CHECKING:
    from headgate.spark.load_violations import Found, Judged


def refuse_files(tables: Sequence[TableLoad]) -> None:
    """Raises on files that cannot be read, and on rows that do not fit their table."""
    by_name = {table.name: table for table in tables}
    refuse_misfits({table.name: table.files for table in tables}, lambda name: by_name[name].schema)


def refuse_violations(
    parts: Parts, session: Any, ground: Ground, tables: Sequence[TableLoad]
) -> None:
    """Raises on rows that break what their tables demand; the session shows the branch itself."""
    from headgate.spark.load_violations import find_violations  # noqa: PLC0415  (slow: Spark)

    places = {str(table.name): Places(table.files) for table in tables}
    schemas = _Schemas(parts, ground)

    def told() -> Iterator[Violation]:
        for judged in _judged(parts, session, ground, tables):
            for found in find_violations(judged):
                yield _violation(found, schemas, places)

    refuse(told())


class _Schemas:
    """The Arrow types of columns, by which values are shown."""

    def __init__(self, parts: Parts, ground: Ground) -> None:
        self._parts = parts
        self._ground = ground

    def kind(self, dataset: str, column: str) -> Any:
        standing = self._ground.load(parse_dataset_name(dataset))
        scan = TableScan(version_of(self._parts, standing), self._parts.options)
        return scan.schema.field(column).type


def _violation(found: Found, schemas: _Schemas, places: dict[str, Places]) -> Violation:
    where = places[found.dataset].of(*found.place) if found.place is not None else {}
    return Violation(
        dataset=found.dataset,
        kind=found.kind,
        columns=found.columns,
        values=tuple(
            plain(value, schemas.kind(found.dataset, column))
            for column, value in zip(found.columns, found.values, strict=True)
        ),
        detail={**found.detail, **where},
    )


def _judged(
    parts: Parts, session: Any, ground: Ground, tables: Sequence[TableLoad]
) -> Iterator[Judged]:
    from headgate.spark.load_picture import Way, picture  # noqa: PLC0415  (slow: Spark)
    from headgate.spark.load_violations import Judged  # noqa: PLC0415  (slow: Spark)

    ways = {
        LoadMode.APPEND: Way.ADD,
        LoadMode.OVERWRITE: Way.REPLACE,
        LoadMode.MERGE: Way.MERGE,
    }
    pictures = {table.name: picture(session, table.load, ways[table.mode]) for table in tables}
    around = Neighbours(parts, ground)

    def rows_of(name: DatasetName) -> Any:
        return pictures[name].rows if name in pictures else session.table(sql_name(name))

    for table in sorted(tables, key=lambda table: table.name):
        yield Judged(
            dataset=str(table.name),
            table=pictures[table.name],
            constraints=table.demands,
            required=table.required,
            referred={
                text: (rows_of(other), key) for text, (other, key) in around.keys(table).items()
            },
            referring=[
                (str(one.dataset), rows_of(one.dataset), one.column)
                for one in around.referring(table)
            ],
        )
