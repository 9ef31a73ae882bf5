"""Verbs on the rows of many tables, as Python code calls them: each is one publication."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import orjson

from headgate.errors import Invalid, InvalidSchemaFile, MissingExtra
from headgate.model.changes import operation_key
from headgate.model.contexts import parse_context
from headgate.model.ids import TransactionId
from headgate.model.names import check_label, check_options, parse_dataset_name
from headgate.settings import Settings
from headgate.store.transactions import StoreParts
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from headgate.rows.outcome import (
        AppliedSchema,
        Optimized,
        Outcome,
        Parts,
        PlannedSchema,
        Request,
    )
    from headgate.rows.sources import Source


# Rows as Python objects, as lines of JSON: every value arrives, or is refused by its row.

_LEAST, _MOST = -(2**63), 2**64 - 1


def write_lines(rows: Sequence[Any]) -> bytes:
    """A line for each; what JSON knows no number for is written as text, which columns read."""
    return b"".join(_write(row, number) + b"\n" for number, row in enumerate(rows, start=1))


def _write(row: Any, number: int) -> bytes:
    try:
        # Nearly all rows; orjson itself would write NaN and infinities as null.
        if not _has_odd_number(row):
            return orjson.dumps(row)
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(row))
    except (TypeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"row {number} cannot be loaded: {error}. Give texts, numbers, dates, and lists and "
            "objects of them, or rows that speak Arrow.",
            row=number,
        ) from error


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_odd_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_odd_number, value))


def _plain(value: Any) -> Any:
    """The same in types that JSON has."""
    match value:
        case bool():
            return value
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float() if math.isfinite(value):
            return float(value)
        case float():
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case int() if not _LEAST <= value <= _MOST:
            return str(value)
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.decode()
        case datetime.date() | datetime.time():
            return value.isoformat()
    # A number of NumPy, whose types only an optional library knows.
    return _plain(value.item()) if callable(getattr(value, "item", None)) else value


ENGINES = ("arrow", "spark")
# A file, a directory, `-`, or an Arrow table; or several.
Places: TypeAlias = Any


class How(TypedDict, total=False):
    """What every verb takes beside its own arguments."""

    actor: str | None
    idempotency_key: str | None
    # The views that the caller has seen, by dataset; another view is a conflict.
    if_head: Mapping[str, str | None]
    timeout_seconds: float
    may_write_protected: bool


@dataclass(frozen=True)
class Rows:
    """The rows of a store's tables; needs the extra `mutations`."""

    store: StoreParts
    tables: TableVersions
    # Starts Spark, so it is asked only where Spark was.
    session: Callable[[str], Any]

    @property
    def settings(self) -> Settings:
        return self.store.settings

    def mutate(self, branch: str, sql: str, **how: Unpack[How]) -> Outcome:
        """A script of SQL statements over many tables, each seeing those before it."""
        with _needing_extra():
            from headgate.rows.mutate import mutate  # noqa: PLC0415  (an optional extra)
        return mutate(self._parts(), self._request("mutate", branch, {"sql": sql}, how), sql)

    def load(
        self,
        branch: str,
        sources: Mapping[str, Places],
        *,
        mode: str = "append",
        engine: str = "arrow",
        **how: Unpack[How],
    ) -> Outcome:
        """Files, directories or Arrow tables into tables, all of them at once."""
        with _needing_extra():
            from headgate.rows.load import LoadMode, load  # noqa: PLC0415  (an optional extra)
        if mode not in set(LoadMode):
            raise Invalid(f"{mode!r} is no mode: choose append, merge or overwrite.", mode=mode)
        _check_engine(engine)
        given = {parse_dataset_name(name): _several(places) for name, places in sources.items()}
        asked: dict[str, Any] = {"mode": mode}
        contents = None
        if how.get("idempotency_key"):
            from headgate.rows.sources import contents_of, names_of, with_stdin_read  # noqa: PLC0415  (an optional extra)

            if engine == "arrow":
                given = with_stdin_read(given)
            asked["sources"], contents = names_of(given), contents_of(given)
        request = self._request("load", branch, asked, how, contents=contents)
        if engine == "spark":
            from headgate.rows.load_spark import load_by_spark  # noqa: PLC0415  (an optional extra)

            return load_by_spark(
                self._parts(),
                request,
                given,
                LoadMode(mode),
                session=self.session,
                contents=self.store.contents,
            )
        return load(self._parts(), request, given, LoadMode(mode))

    def merge(
        self,
        source: str,
        into: str,
        *,
        datasets: Sequence[str] = (),
        dry_run: bool = False,
        **how: Unpack[How],
    ) -> Outcome:
        """What a branch changed since it forked, into another; conflicts are all listed."""
        with _needing_extra():
            from headgate.rows.merge import Merging, merge  # noqa: PLC0415  (an optional extra)
        names = tuple(parse_dataset_name(name) for name in datasets)
        asked = {"source": source, "datasets": [str(name) for name in names]}
        return merge(
            self._parts(),
            self._request("merge", into, asked, how),
            Merging(
                source=source,
                datasets=names,
                dry_run=dry_run,
                primary=self.settings.builds.branch,
            ),
        )

    def optimize(
        self,
        dataset: str,
        *,
        branch: str,
        keep_snapshots: int = 100,
        engine: str = "arrow",
        **how: Unpack[How],
    ) -> Optimized:
        """Writes a table's small files together; the rows and the content id stay."""
        with _needing_extra():
            from headgate.rows.optimize import (  # noqa: PLC0415  (an optional extra)
                optimize,
                rewriting_by_spark,
            )
        _check_engine(engine)
        request = self._request("optimize", branch, {"dataset": dataset}, how)
        return optimize(
            self._parts(),
            request,
            parse_dataset_name(dataset),
            keep_snapshots=keep_snapshots,
            rewrite=rewriting_by_spark(request, self.session) if engine == "spark" else None,
        )

    def advise_optimize(self, dataset: str, *, branch: str) -> str | None:
        """A word for those whose table is better rewritten by Spark."""
        with _needing_extra():
            from headgate.rows.optimize import advice_for  # noqa: PLC0415  (an optional extra)
        request = self._request("optimize", branch, {"dataset": dataset}, {})
        return advice_for(self._parts(), request, parse_dataset_name(dataset))

    def advise(self, sources: Mapping[str, list[str]]) -> str | None:
        """A word for those whose files are better loaded by Spark."""
        with _needing_extra():
            from headgate.rows.load import advice_for  # noqa: PLC0415  (an optional extra)
        return advice_for(place for places in sources.values() for place in places)

    def plan_schema(self, file: Path | str, *, branch: str) -> PlannedSchema:
        """What applying a schema file to a branch would do; no side effect."""
        return self.plan_schema_text(read_schema(file), file=str(file), branch=branch)

    def apply_schema(self, file: Path | str, *, branch: str, **how: Unpack[How]) -> AppliedSchema:
        """Makes a branch's tables what a schema file says; rows that are there must fit."""
        return self.apply_schema_text(read_schema(file), file=str(file), branch=branch, **how)

    def plan_schema_text(self, text: str, *, file: str, branch: str) -> PlannedSchema:
        """The same of a text, which errors name by the file that it came from."""
        with _needing_extra():
            from headgate.rows.schema_apply import plan  # noqa: PLC0415  (an optional extra)
            from headgate.rows.schema_file import parse_schema  # noqa: PLC0415  (an optional extra)
        return plan(self._parts(), branch, parse_schema(text, file))

    def apply_schema_text(
        self, text: str, *, file: str, branch: str, **how: Unpack[How]
    ) -> AppliedSchema:
        """The same of a text, which errors name by the file that it came from."""
        with _needing_extra():
            from headgate.rows.schema_apply import apply_schema  # noqa: PLC0415  (an optional extra)
            from headgate.rows.schema_file import parse_schema  # noqa: PLC0415  (an optional extra)
        request = self._request("schema", branch, {"schema": text}, how)
        return apply_schema(self._parts(), request, parse_schema(text, file))

    def _parts(self) -> Parts:
        from headgate.rows.outcome import Parts  # noqa: PLC0415  (an optional extra)

        return Parts(
            database=self.store.database,
            versions=self.tables,
            trees=self.store.trees,
            options=self.settings.environ,
        )

    def _request(
        self,
        kind: str,
        branch: str,
        asked: Mapping[str, Any],
        how: How,
        *,
        contents: str | None = None,
    ) -> Request:
        from headgate.rows.outcome import TIMEOUT_SECONDS, Request  # noqa: PLC0415  (an optional extra)

        check_options(how, How)
        named = how.get("actor")
        actor = check_label(named, what="an actor") if named else self.settings.actor
        heads = how.get("if_head") or {}
        context = parse_context(branch)
        place = getattr(context, "branch", branch)
        key = operation_key(
            how.get("idempotency_key"),
            actor=actor,
            kind=kind,
            branch=place,
            request={**asked, "branch": branch, "if_head": dict(heads)},
            contents=contents,
        )
        return Request(
            branch=branch,
            actor=actor,
            operation=key,
            timeout_seconds=how.get("timeout_seconds", TIMEOUT_SECONDS),
            may_write_protected=how.get("may_write_protected", self.store.may_write_protected),
            if_heads={
                parse_dataset_name(name): TransactionId(id) if id else None
                for name, id in heads.items()
            },
        )


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise Invalid(f"{engine!r} is no engine: choose arrow or spark.", engine=engine)


def read_given(sources: Mapping[str, Places]) -> dict[str, list[Source]]:
    """All rows of each dataset's sources, each with the file that it came from."""
    with _needing_extra():
        from headgate.rows.sources import read_sources  # noqa: PLC0415  (an optional extra)
    return {
        name: [source for place in _several(places) for source in read_sources(place)]
        for name, places in sources.items()
    }


def _several(places: Places) -> list[Any]:
    """One place or many; rows as objects are one."""
    if not isinstance(places, list | tuple):
        return [_place(places)]
    if places and isinstance(places[0], dict):
        return [write_lines(places)]
    return [_place(place) for place in places]


def _place(given: Any) -> Any:
    """A file's name, bytes, or rows in memory: whatever speaks Arrow, as data frames do."""
    if isinstance(given, str | Path | bytes):
        return given
    if not any(hasattr(given, speaks) for speaks in ("__arrow_c_stream__", "__arrow_c_array__")):
        raise Invalid(
            f"a {type(given).__name__} cannot be loaded: give a file, bytes, a list of objects, or "
            "rows that speak Arrow, such as a pyarrow table or a data frame."
        )
    import pyarrow as pa  # noqa: PLC0415  (an optional extra, and slow)

    return pa.table(given)


def read_schema(file: Path | str) -> str:
    """The text of a schema file."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSchemaFile(file=str(file), line=1, reason=str(error)) from error


class _needing_extra:  # noqa: N801  (read as a verb where it is used)
    """Turns a library that is not installed into the extra that brings it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ImportError):
            raise MissingExtra(feature="changing rows without Spark", extra="mutations") from error
