"""Verbs on the rows of a served store, each an HTTP request."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from headgate.client.contents import remote_contents
from headgate.client.http import HttpClient, Reply, segment
from headgate.errors import ConstraintsViolated, HeadgateError, InvalidRows, NotFound, Unavailable
from headgate.files.objects import digest_of
from headgate.model.names import DatasetName
from headgate.rows.outcome import AppliedSchema, Optimized, Outcome, PlannedSchema
from headgate.store.rows import RowOptions, Rows, read_given
from headgate.tables.versions import StoredVersion

if TYPE_CHECKING:
    from headgate.rows.sources import Source


# Well below the server's limit for a document: base64 adds a third.
_INLINE_BYTES = 4 * 1024 * 1024


class RemoteRows(Rows):
    """Rows of a served store: the client reads files and sends Arrow streams, the server writes."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def mutate(self, branch: str, sql: str, **how: Unpack[RowOptions]) -> Outcome:
        return self._send("/mutate", how, branch=branch, sql=sql)

    def load(
        self,
        branch: str,
        sources: Mapping[str, Any],
        *,
        mode: str = "append",
        engine: str = "arrow",
        create: bool = False,
        primary_key: Mapping[str, Sequence[str]] | None = None,
        **how: Unpack[RowOptions],
    ) -> Outcome:
        if engine != "arrow":
            raise Unavailable(
                "a server loads what it is sent by Arrow. For Spark, open its endpoint with "
                "`hg.spark(...)` and write there."
            )
        given = read_given(sources)
        streams = {name: [_stream(part) for part in parts] for name, parts in given.items()}
        body: dict[str, Any] = {"branch": branch, "mode": mode}
        if create or primary_key:
            body |= {"create": create, "primary_key": dict(primary_key or {})}
        try:
            return self._send("/load", how, **body, **self._sent(streams))
        except (InvalidRows, ConstraintsViolated) as error:
            _add_line_numbers(error, [part for parts in given.values() for part in parts])
            raise

    def _sent(self, streams: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
        """Return rows inline, or as digests of stored contents if they are too large for that."""
        if sum(len(stream) for each in streams.values() for stream in each) > _INLINE_BYTES:
            return {"contents": {n: [self._stored(s) for s in each] for n, each in streams.items()}}
        encoded = {n: [base64.b64encode(s).decode() for s in each] for n, each in streams.items()}
        return {"arrow": encoded}

    def _stored(self, stream: bytes) -> str:
        digest = digest_of(stream)
        remote_contents(self._http).put_all({digest: stream})
        return digest

    def merge(
        self,
        source: str,
        into: str,
        *,
        datasets: Sequence[str] = (),
        dry_run: bool = False,
        **how: Unpack[RowOptions],
    ) -> Outcome:
        body = {"source": source, "into": into, "datasets": list(datasets), "dry_run": dry_run}
        return self._send("/merge", how, **body)

    def review(
        self, branch: str, *, into: str | None = None, dataset: str | None = None, rows: int = 5
    ) -> list[Any]:
        asked = {"branch": branch, "into": into, "dataset": dataset, "rows": rows}
        found: list[Any] = self._http.request("GET", "/diff", params=asked).document
        return found

    def advise(self, sources: Mapping[str, list[str]]) -> str | None:
        """Return None: the client cannot judge the server's machine."""
        return None

    def plan_schema_text(self, text: str, *, file: str, branch: str) -> PlannedSchema:
        body = {"text": text, "file": file, "branch": branch}
        return PlannedSchema.from_json(self._http.post("/schema/plan", **body))

    def apply_schema_text(
        self, text: str, *, file: str, branch: str, **how: Unpack[RowOptions]
    ) -> AppliedSchema:
        body = {"text": text, "file": file, "branch": branch}
        return AppliedSchema.from_json(self._publish("/schema/apply", how, **body).document)

    def advise_optimize(self, dataset: str, *, branch: str) -> str | None:
        """Return None: the client cannot judge the server's machine."""
        return None

    def optimize(
        self,
        dataset: str,
        *,
        branch: str,
        keep_snapshots: int = 100,
        engine: str = "arrow",
        **how: Unpack[RowOptions],
    ) -> Optimized:
        if engine != "arrow":
            raise Unavailable(
                "a server optimizes by Arrow. `headgate optimize --engine spark` is done where the "
                "store is."
            )
        body = {"dataset": dataset, "branch": branch, "keep_snapshots": keep_snapshots}
        return Optimized.from_json(self._publish("/optimize", how, **body).document)

    def _publish(self, path: str, how: RowOptions, **body: Any) -> Reply:
        return self._http.publish("POST", path, how.get("idempotency_key"), body=body)

    def _send(self, path: str, how: RowOptions, **body: Any) -> Outcome:
        if how.get("if_head"):
            body["if_head"] = dict(how["if_head"])
        if "timeout_seconds" in how:
            body["timeout_seconds"] = how["timeout_seconds"]
        reply = self._publish(path, how, **body)
        return Outcome.from_json(reply.document, replayed=reply.replayed)


def _stream(source: Source) -> bytes:
    import pyarrow.ipc as ipc  # noqa: PLC0415  (an optional extra, and slow)

    from headgate.rows.sources import as_sent  # noqa: PLC0415  (an optional extra)

    rows = as_sent(source)
    sink = io.BytesIO()
    with ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def _add_line_numbers(error: HeadgateError, sources: Sequence[Source]) -> None:
    """Replace row numbers in an error by lines: the server counts rows, users look for lines."""
    line_of = {source.file: source.line_of for source in sources}
    texts: dict[str, str] = {}
    for violation in error.facts.get("rows") or error.facts.get("violations") or ():
        file, row = violation.get("file"), violation.get("line")
        if file in line_of and row:
            violation["line"] = line_of[file](row - 1)
            texts[f"{file}:{row}"] = f"{file}:{violation['line']}"
    if texts:
        places = "|".join(re.escape(place) for place in sorted(texts, key=len, reverse=True))
        error.message = re.sub(
            rf"(?:{places})(?!\d)", lambda found: texts[found.group()], error.message
        )


_S3_DEFAULTS = {"AWS_ENDPOINT_URL_S3": "s3.endpoint", "AWS_REGION": "client.region"}


class RemoteContextTables:
    """The tables of a context as the server's Iceberg endpoint returns them to the token."""

    def __init__(self, http: HttpClient, context: str, options: Mapping[str, str]) -> None:
        self._http = http
        config = http.iceberg("config", warehouse=context)
        self._prefix = config["overrides"]["prefix"]
        # The server names endpoint and region of its bucket; the client has the credentials.
        given = config["defaults"]
        found = {name: given[key] for name, key in _S3_DEFAULTS.items() if key in given}
        self.options = {**found, **options}

    def find(self, name: DatasetName) -> StoredVersion | None:
        """Return the version that the context shows; None for a table that it does not show."""
        sent = self._load("tables", name, snapshots="refs")
        return sent and StoredVersion(
            location=sent["metadata-location"], content=b"", metadata=sent["metadata"]
        )

    def has_view(self, name: DatasetName) -> bool:
        """Return whether the context shows a view of this name."""
        return self._load("views", name) is not None

    def _load(self, kind: str, name: DatasetName, **query: str) -> Any:
        namespace = segment("\x1f".join(name.namespace))
        path = f"{self._prefix}/namespaces/{namespace}/{kind}/{segment(name.name)}"
        try:
            return self._http.iceberg(path, **query)
        except NotFound:
            return None
