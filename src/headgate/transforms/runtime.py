"""Arguments of a transform's function while it runs; callables that read and write are injected."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeAlias, TypeVar

from headgate.errors import Invalid
from headgate.model.names import DatasetName

# Classes of pyspark.sql, classic or Connect, named without importing Spark.
DataFrame: TypeAlias = Any
SparkSession: TypeAlias = Any

_Mode = TypeVar("_Mode", bound=enum.StrEnum)


class ReadMode(enum.StrEnum):
    """Rows to read: those added since the last run, those before it, or all current rows."""

    ADDED = "added"
    PREVIOUS = "previous"
    CURRENT = "current"


class WriteMode(enum.StrEnum):
    """Effect of a write on existing data: replace it, modify it, or append to it."""

    REPLACE = "replace"
    MODIFY = "modify"
    APPEND = "append"


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Mode and layout of a write."""

    mode: WriteMode = WriteMode.REPLACE
    partition_cols: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """Path, size and modification time of a file."""

    path: str
    size: int
    # Milliseconds since 1970, as Hadoop file systems report it.
    modified: int


class FileSystem(Protocol):
    """Files of a `files` dataset that a transform may read or write."""

    def ls(
        self, glob: str | None = None, regex: str = ".*", show_hidden: bool = False
    ) -> Iterator[FileStatus]: ...

    def open(self, path: str, mode: str = "r", **kwargs: Any) -> IO[Any]: ...

    @property
    def hadoop_path(self) -> str: ...


class TransformInput:
    """An input of a running job."""

    def __init__(
        self,
        alias: str,
        read: Callable[[ReadMode], DataFrame],
        *,
        dataset: DatasetName | None = None,
        branch: str | None = None,
        transaction: str | None = None,
        default_mode: ReadMode = ReadMode.CURRENT,
        filesystem: Callable[[ReadMode], FileSystem] | None = None,
    ) -> None:
        self.alias = alias
        self.dataset = dataset
        self.branch = branch
        self.transaction = transaction
        self._read = read
        self._default_mode = default_mode
        self._filesystem = filesystem

    @property
    def path(self) -> str:
        """Name of the dataset."""
        return str(self.dataset) if self.dataset else self.alias

    def dataframe(self, mode: str | None = None) -> DataFrame:
        """Return the rows: by default all, or in an incremental run those added since the last.

        :param mode: `"added"`, `"previous"` or `"current"`.
        """
        return self._read(_mode(ReadMode, mode, self._default_mode))

    def pandas(self, mode: str | None = None) -> Any:
        """Return the rows as a pandas DataFrame."""
        return self.dataframe(mode).toPandas()

    def filesystem(self, mode: str | None = None) -> FileSystem:
        """Return the files of a `files` dataset."""
        if self._filesystem is None:
            raise Invalid(f"{self.path} is a table: read it with {self.alias}.dataframe().")
        return self._filesystem(_mode(ReadMode, mode, self._default_mode))


class TransformOutput:
    """An output of a running job; readers see written data after the job publishes."""

    def __init__(
        self,
        alias: str,
        write: Callable[[DataFrame, WriteOptions], None],
        *,
        dataset: DatasetName | None = None,
        branch: str | None = None,
        read: Callable[[ReadMode, Any], DataFrame] | None = None,
        filesystem: Callable[[ReadMode], FileSystem] | None = None,
        options: WriteOptions | None = None,
        from_pandas: Callable[[Any], DataFrame] | None = None,
    ) -> None:
        self.alias = alias
        self.dataset = dataset
        self.branch = branch
        self.written = False
        self._write = write
        self._read = read
        self._filesystem = filesystem
        self._from_pandas = from_pandas
        self._declared = options or WriteOptions()
        self._write_mode = self._declared.mode

    @property
    def path(self) -> str:
        """Name of the dataset."""
        return str(self.dataset) if self.dataset else self.alias

    def write_dataframe(
        self,
        df: DataFrame,
        partition_cols: Sequence[str] | None = None,
        *,
        sort_by: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Write a DataFrame; arguments override the layout that the `Output` declares."""
        declared = self._declared
        self._write(
            df,
            WriteOptions(
                mode=self._write_mode,
                partition_cols=declared.partition_cols
                if partition_cols is None
                else tuple(partition_cols),
                sort_by=declared.sort_by if sort_by is None else tuple(sort_by),
                options=dict(options or declared.options),
            ),
        )
        self.mark_written()

    def write_pandas(self, frame: Any) -> None:
        """Write a pandas DataFrame."""
        if self._from_pandas is None:
            raise Invalid(f"{self.path}: pandas cannot be written here; use write_dataframe().")
        self.write_dataframe(self._from_pandas(frame))

    def dataframe(self, mode: str | None = None, schema: Any = None) -> DataFrame:
        """Return the output's rows: `current`, or `previous` and `added` in an incremental run."""
        if self._read is None:
            raise Invalid(f"{self.path} cannot be read here; declare the transform @incremental.")
        return self._read(_mode(ReadMode, mode, ReadMode.CURRENT), schema)

    def set_mode(self, mode: str) -> None:
        """Set the mode of the next write: `replace`, `modify` or `append`."""
        self._write_mode = _mode(WriteMode, mode, WriteMode.REPLACE)

    @property
    def replaces(self) -> bool:
        """True if the next write replaces existing data."""
        return self._write_mode is WriteMode.REPLACE

    def filesystem(self, mode: str | None = None) -> FileSystem:
        """Return the files that this job writes; with `previous`, those before the run to read."""
        if self._filesystem is None:
            raise Invalid(
                f"{self.path} is a table: write it with {self.alias}.write_dataframe(df), or "
                "declare Output(..., kind='files')."
            )
        return self._filesystem(_mode(ReadMode, mode, ReadMode.CURRENT))

    def mark_written(self) -> None:
        """Mark the output as written by other means, such as SQL."""
        self.written = True


@dataclass(kw_only=True)
class TransformContext:
    """The job in which a function runs, passed to its parameter `ctx`."""

    spark_session: SparkSession = None
    is_incremental: bool = False
    branch: str | None = None
    fallback_branches: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    aborted: bool = False

    def abort_job(self) -> None:
        """End the job successfully without publishing; the function runs until it returns."""
        self.aborted = True


def _mode(kind: type[_Mode], given: str | None, default: _Mode) -> _Mode:
    if given is None:
        return default
    try:
        return kind(given)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise Invalid(f"{given!r} is not a mode; use one of {known}.") from error
