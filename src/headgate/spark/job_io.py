"""The inputs and outputs of a running transform: tables of its session's catalog, or files."""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headgate.errors import Invalid
from headgate.model.names import check_file_path, parse_dataset_name
from headgate.spark.job_protocol import JobOrder
from headgate.spark.session import table_identifier
from headgate.spark.sql import quote
from headgate.transforms import FileStatus, FileSystem, Output, TransformInput, TransformOutput
from headgate.transforms.runtime import ReadMode, WriteMode, WriteOptions

# Requests a directory from the build and waits until it exists.
Fetch = Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of one write of a table, as Iceberg counted it."""

    output: str
    dataset: str
    rows: int
    snapshot: int | None


@dataclass(frozen=True, kw_only=True)
class JobIO:
    """Makes the inputs and outputs of an order, by their names in the transform."""

    session: Any
    order: JobOrder
    # The directories of each input or output of files, by read mode.
    files: Mapping[str, Mapping[str, str]]
    fetch: Fetch
    on_written: Callable[[Written], None]

    def input(self, alias: str) -> TransformInput:
        """Return an input that reads its table, or the files of its directories."""
        given, directories = self.order.inputs[alias], self.files.get(alias)
        name = parse_dataset_name(given.dataset)
        table = table_identifier(name)

        def read(mode: ReadMode) -> Any:
            return _read_table(self.session, table, mode, given.since_snapshot)

        def files(mode: ReadMode) -> FileSystem:
            return DirectoryFiles(self.fetch(Path((directories or {})[mode])))

        return TransformInput(
            alias,
            read,
            dataset=name,
            branch=given.branch,
            transaction=given.transaction,
            default_mode=ReadMode.ADDED if self.order.incremental else ReadMode.CURRENT,
            filesystem=files if directories else None,
        )

    def output(self, alias: str, declared: Output) -> TransformOutput:
        """Return an output that writes its table, or files into its directories."""
        target, directories = self.order.outputs[alias], self.files.get(alias)
        name, session = parse_dataset_name(target.dataset), self.session
        table = table_identifier(name)

        def write(frame: Any, options: WriteOptions) -> None:
            _write_table(session, frame, table, options)
            snapshot = _find_snapshot(session, table)
            self.on_written(
                Written(
                    output=alias,
                    dataset=target.dataset,
                    rows=int(snapshot.summary.get("added-records") or 0) if snapshot else 0,
                    snapshot=snapshot.id if snapshot else None,
                )
            )

        def read(mode: ReadMode, schema: Any) -> Any:
            return _read_output(session, table, mode, target.base_snapshot, schema)

        def files(mode: ReadMode) -> FileSystem:
            directory = Path((directories or {})[mode])
            if mode is ReadMode.PREVIOUS:
                return DirectoryFiles(self.fetch(directory))
            return DirectoryFiles(directory, output.mark_written)

        output = TransformOutput(
            alias,
            write,
            dataset=name,
            branch=self.order.branch,
            read=read,
            filesystem=files if directories else None,
            options=WriteOptions(
                mode=WriteMode.MODIFY if self.order.incremental else WriteMode.REPLACE,
                partition_cols=declared.partition_cols,
                sort_by=declared.sort_by,
            ),
            from_pandas=session.createDataFrame,
        )
        return output


def _read_table(session: Any, table: str, mode: ReadMode, since: int | None) -> Any:
    """Return the current rows, those of an earlier snapshot, or those added since it."""
    if mode is ReadMode.CURRENT or (mode is ReadMode.ADDED and since is None):
        return session.table(table)
    if mode is ReadMode.PREVIOUS and since is not None:
        return session.read.option("versionAsOf", str(since)).table(table)
    newest = _find_snapshot(session, table)
    if since is None or newest is None or newest.id == since:
        # Iceberg rejects a range that starts where it ends.
        return session.table(table).limit(0)
    return session.read.option("start-snapshot-id", str(since)).table(table)


def _read_output(session: Any, table: str, mode: ReadMode, base: int | None, schema: Any) -> Any:
    """Return the current rows of an output, the previous ones, or those that this job added."""
    if not session.catalog.tableExists(table):
        if schema is None:
            raise Invalid(
                f"Table does not exist: {table.replace('`', '')}. An output that was never "
                "written has no columns yet: pass them, as in "
                "dataframe('previous', schema=...)."
            )
        return session.createDataFrame([], schema)
    if mode is ReadMode.ADDED and base is not None and not _descends(session, table, base):
        # This job has replaced all rows.
        base = None
    return _read_table(session, table, mode, base)


def _write_table(session: Any, frame: Any, table: str, options: WriteOptions) -> None:
    """Replace the table with these rows, or append them to it."""
    if options.sort_by:
        frame = frame.sort(*options.partition_cols, *options.sort_by)
    writer = frame.writeTo(table).using("iceberg").options(**options.options)
    if options.sort_by:
        # Iceberg would shuffle the rows again by partition, and undo the order.
        writer = writer.option("distribution-mode", "none")
    if options.mode is not WriteMode.REPLACE and session.catalog.tableExists(table):
        _add_new_columns(session, frame, table)
        writer.append()
        return
    if options.partition_cols:
        writer = writer.partitionedBy(*(frame[name] for name in options.partition_cols))
    writer.createOrReplace()


def _add_new_columns(session: Any, frame: Any, table: str) -> None:
    """Add the columns that the table does not have; its existing rows get null in them."""
    known = {field.name.lower() for field in session.table(table).schema.fields}
    new = [field for field in frame.schema.fields if field.name.lower() not in known]
    if new:
        columns = ", ".join(f"{quote(field.name)} {field.dataType.simpleString()}" for field in new)
        session.sql(f"ALTER TABLE {table} ADD COLUMNS ({columns})")


# --- snapshots, from the catalog's objects or, on a Connect server, by small queries ---------


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """An Iceberg snapshot: its id, and the counts that Iceberg recorded in it."""

    id: int
    summary: Mapping[str, str]


def _find_snapshot(session: Any, table: str) -> _Snapshot | None:
    if _is_classic(session):
        # Costs no Spark job.
        found = _load_table(session, table).currentSnapshot()
        return _Snapshot(id=found.snapshotId(), summary=found.summary()) if found else None
    main = session.sql(f"select snapshot_id from {table}.refs where name = 'main'").first()
    if main is None:
        return None
    query = f"select summary from {table}.snapshots where snapshot_id = {main['snapshot_id']}"
    return _Snapshot(id=main["snapshot_id"], summary=session.sql(query).first()["summary"])


def _descends(session: Any, table: str, snapshot: int) -> bool:
    """Return whether that snapshot is an ancestor of the table's current one."""
    if _is_classic(session):
        ancestry = session._jvm.org.apache.iceberg.util.SnapshotUtil
        return bool(ancestry.isAncestorOf(_load_table(session, table), snapshot))
    known = session.sql(f"select snapshot_id from {table}.history where is_current_ancestor")
    return known.where(known.snapshot_id == snapshot).first() is not None


def _is_classic(session: Any) -> bool:
    """Return whether this is a session in a JVM; a Connect client cannot reach Java objects."""
    return hasattr(session, "_jsparkSession")


def _load_table(session: Any, table: str) -> Any:
    iceberg = session._jvm.org.apache.iceberg.spark.Spark3Util
    return iceberg.loadIcebergTable(session._jsparkSession, table)


class DirectoryFiles:
    """The files of a dataset in a directory of the job; read-only unless `on_write` is given."""

    def __init__(self, root: Path, on_write: Callable[[], None] | None = None) -> None:
        self._root = root
        self._on_write = on_write

    @property
    def hadoop_path(self) -> str:
        return self._root.as_uri()

    def ls(
        self, glob: str | None = None, regex: str = ".*", show_hidden: bool = False
    ) -> Iterator[FileStatus]:
        """Yield the files in order of their paths; hidden names start with a dot or underscore."""
        for path in sorted(path for path in self._root.rglob("*") if path.is_file()):
            name = path.relative_to(self._root).as_posix()
            if not show_hidden and path.name.startswith((".", "_")):
                continue
            if _matches(name, glob) and re.fullmatch(regex, name):
                stat = path.stat()
                yield FileStatus(
                    path=name, size=stat.st_size, modified=stat.st_mtime_ns // 1_000_000
                )

    def open(self, path: str, mode: str = "r", **kwargs: Any) -> IO[Any]:
        file = self._root / check_file_path(path)
        if set(mode) & set("wax+"):
            if self._on_write is None:
                raise Invalid(f"{path} is a file of an input, which can be read, not written.")
            file.parent.mkdir(parents=True, exist_ok=True)
            self._on_write()
        return file.open(mode, **kwargs)


def _matches(name: str, glob: str | None) -> bool:
    """Return whether a path matches; `*` matches slashes too, and `**/` also matches nothing."""
    if glob is None:
        return True
    return any(fnmatch.fnmatchcase(name, form) for form in {glob, glob.replace("**/", "")})
