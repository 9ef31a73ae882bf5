"""A load that is refused ends with its exit code, whatever threads of Arrow still do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from headgate.errors import InvalidSource
from headgate.rows import sources


def _bytes_of(format: str) -> bytes:
    rows, sink = pa.table({"id": ["1"]}), io.BytesIO()
    if format == "parquet":
        parquet.write_table(rows, sink)
    elif format == "arrow":
        with ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    else:
        sink.write(b"id\n1\n")
    return sink.getvalue()


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
def test_readers_of_arrow_get_no_python_file_which_their_threads_would_read_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    given: list[Any] = []

    def spy(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any, *rest: Any, **options: Any) -> Any:
            given.append(where)
            return read(where, *rest, **options)

        return call

    for module, name in (
        (csv, "read_csv"),
        (csv, "open_csv"),
        (parquet, "ParquetFile"),
        (ipc, "open_file"),
        (ipc, "open_stream"),
    ):
        monkeypatch.setattr(module, name, spy(getattr(module, name)))
    path = tmp_path / f"rows.{format}"
    path.write_bytes(_bytes_of(format))
    for where in (path, path.read_bytes()):
        [source] = sources.read_sources(where)
        assert source.rows.to_pylist() == [{"id": "1"}]
    assert given
    assert [where for where in given if not isinstance(where, pa.NativeFile | Path | str)] == []


def test_header_that_is_rejected_names_the_column_that_occurs_twice() -> None:
    with pytest.raises(InvalidSource, match="column 'id' occurs twice"):
        list(sources.read_sources(b"id,id\n1,2\n"))
