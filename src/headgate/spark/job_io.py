"""How a running transform reads and writes: tables through the session's catalog."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headgate.errors import Invalid
from headgate.model.names import DatasetName, check_file_path, parse_dataset_name
from headgate.spark.job_protocol import Source, Target
from headgate.spark.session import CATALOG
from headgate.transforms import FileStatus, FileSystem, Output, TransformInput, TransformOutput
from headgate.transforms.runtime import ReadMode, WriteMode, WriteOptions

# The snapshot that a table shows, as Iceberg describes it.


@dataclass(frozen=True, kw_only=True)
class NewestSnapshot:
    """Its id, and what Iceberg counted when it was made."""

    id: int
    summary: Mapping[str, str]


def find_newest(session: Any, table: str) -> NewestSnapshot | None:
    """The snapshot that a table shows, from the catalog or, on a server, by two small queries."""
    if hasattr(session, "_jsparkSession"):
        return _from_catalog(session, table)
    return _from_metadata_tables(session, table)


def descends(session: Any, table: str, snapshot: int) -> bool:
    """Whether what the table shows goes back to that snapshot."""
    if hasattr(session, "_jsparkSession"):
        ancestry = session._jvm.org.apache.iceberg.util.SnapshotUtil
        return bool(ancestry.isAncestorOf(_load(session, table), snapshot))
    known = session.sql(f"select snapshot_id from {table}.history where is_current_ancestor")
    return known.where(known.snapshot_id == snapshot).first() is not None


def _from_catalog(session: Any, table: str) -> NewestSnapshot | None:
    """Costs no Spark job."""
    found = _load(session, table).currentSnapshot()
    return NewestSnapshot(id=found.snapshotId(), summary=found.summary()) if found else None


def _load(session: Any, table: str) -> Any:
    iceberg = session._jvm.org.apache.iceberg.spark.Spark3Util
    return iceberg.loadIcebergTable(session._jsparkSession, table)


def _from_metadata_tables(session: Any, table: str) -> NewestSnapshot | None:
    """A Connect client has no hold of the catalog's objects."""
    main = session.sql(f"select snapshot_id from {table}.refs where name = 'main'").first()
    if main is None:
        return None
    query = f"select summary from {table}.snapshots where snapshot_id = {main['snapshot_id']}"
    return NewestSnapshot(id=main["snapshot_id"], summary=session.sql(query).first()["summary"])


# The files of a files dataset as a transform sees them: a directory that is the job's own.


class DirectoryFiles:
    """Files below one directory, read-only unless there is somebody to tell of a write."""

    def __init__(self, root: Path, on_write: Callable[[], None] | None = None) -> None:
        self._root = root
        self._on_write = on_write

    @property
    def hadoop_path(self) -> str:
        return self._root.as_uri()

    def ls(
        self, glob: str | None = None, regex: str = ".*", show_hidden: bool = False
    ) -> Iterator[FileStatus]:
        """The files in order of their paths; hidden ones begin with a dot or an underscore."""
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
                raise Invalid(f"{path} is a file of an input: it can be read, not written.")
            file.parent.mkdir(parents=True, exist_ok=True)
            self._on_write()
        return file.open(mode, **kwargs)


def _matches(name: str, glob: str | None) -> bool:
    """Whether a path matches; `*` crosses folders, and `**/` stands for none of them too."""
    if glob is None:
        return True
    return any(fnmatch.fnmatchcase(name, form) for form in {glob, glob.replace("**/", "")})


@dataclass(frozen=True, kw_only=True)
class Written:
    """What one write of a table did, as Iceberg counted it."""

    output: str
    dataset: str
    rows: int
    snapshot: int | None


def table_identifier(name: DatasetName) -> str:
    """The dataset in Spark SQL, quoted whatever it is called."""
    return ".".join(f"`{part}`" for part in (CATALOG, *name.namespace, name.name))


# Waits until a directory is there, having asked for it.
Fetch = Callable[[Path], Path]


def make_input(
    session: Any, alias: str, source: Source, *, incremental: bool, fetch: Fetch
) -> TransformInput:
    """An input that reads its table, or the files of its directory."""
    name = parse_dataset_name(source.dataset)
    table = table_identifier(name)

    def read(mode: ReadMode) -> Any:
        return read_table(session, table, mode, source.since_snapshot)

    def files(mode: ReadMode) -> FileSystem:
        return DirectoryFiles(fetch(Path((source.files or {})[mode])))

    return TransformInput(
        alias,
        read,
        dataset=name,
        branch=source.branch,
        transaction=source.transaction,
        default_mode=ReadMode.ADDED if incremental else ReadMode.CURRENT,
        filesystem=files if source.files else None,
    )


def make_output(
    session: Any,
    alias: str,
    target: Target,
    declared: Output,
    on_written: Callable[[Written], None],
    *,
    incremental: bool,
    fetch: Fetch,
) -> TransformOutput:
    """An output that writes its table, or files into its directory."""
    name = parse_dataset_name(target.dataset)
    table = table_identifier(name)

    def write(frame: Any, options: WriteOptions) -> None:
        write_table(session, frame, table, options)
        on_written(_look_at_write(session, table, alias, target))

    def read(mode: ReadMode, schema: Any) -> Any:
        return read_output(session, table, mode, target.base_snapshot, schema)

    def files(mode: ReadMode) -> FileSystem:
        directory = Path((target.files or {})[mode])
        if mode is ReadMode.PREVIOUS:
            return DirectoryFiles(fetch(directory))
        return DirectoryFiles(directory, output.mark_written)

    output = TransformOutput(
        alias,
        write,
        dataset=name,
        branch=target.branch,
        read=read,
        filesystem=files if target.files else None,
        options=WriteOptions(
            mode=WriteMode.MODIFY if incremental else WriteMode.REPLACE,
            partition_cols=declared.partition_cols,
            sort_by=declared.sort_by,
        ),
        from_pandas=session.createDataFrame,
    )
    return output


def read_table(session: Any, table: str, mode: ReadMode, since: int | None) -> Any:
    """The rows now, those of one earlier snapshot, or those added since it."""
    if mode is ReadMode.CURRENT or (mode is ReadMode.ADDED and since is None):
        return session.table(table)
    if mode is ReadMode.PREVIOUS and since is not None:
        return session.read.option("versionAsOf", str(since)).table(table)
    newest = find_newest(session, table)
    if since is None or newest is None or newest.id == since:
        # Iceberg refuses a range that begins where it ends.
        return session.table(table).limit(0)
    return session.read.option("start-snapshot-id", str(since)).table(table)


def read_output(session: Any, table: str, mode: ReadMode, base: int | None, schema: Any) -> Any:
    """What an output holds, held before, or was given by this job; it may not be there yet."""
    if not session.catalog.tableExists(table):
        if schema is None:
            raise Invalid(
                f"{table.replace('`', '')} holds nothing yet, so that its columns are not known: "
                "say which they are, as in dataframe('previous', schema=...)."
            )
        return session.createDataFrame([], schema)
    if mode is ReadMode.ADDED and base is not None and not descends(session, table, base):
        # All of it was replaced by this job.
        base = None
    return read_table(session, table, mode, base)


def write_table(session: Any, frame: Any, table: str, options: WriteOptions) -> None:
    """Replaces the table by these rows, or adds them to it."""
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
    """Columns that the table lacks are added to it; rows that it has show null in them."""
    known = {field.name.lower() for field in session.table(table).schema.fields}
    new = [field for field in frame.schema.fields if field.name.lower() not in known]
    if new:
        columns = ", ".join(
            f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in new
        )
        session.sql(f"ALTER TABLE {table} ADD COLUMNS ({columns})")


def _look_at_write(session: Any, table: str, alias: str, target: Target) -> Written:
    """What Iceberg counted, read from the newest snapshot's own summary."""
    snapshot = find_newest(session, table)
    return Written(
        output=alias,
        dataset=target.dataset,
        rows=int(snapshot.summary.get("added-records") or 0) if snapshot else 0,
        snapshot=snapshot.id if snapshot else None,
    )
