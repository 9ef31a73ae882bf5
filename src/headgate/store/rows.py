"""Verbs on the rows of many tables.

Each call is one publication: readers see all of its changes or none.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import orjson

from headgate.catalog.overview import load_branch_name
from headgate.errors import Invalid, InvalidSchemaFile, MissingExtra
from headgate.files.objects import StoredContent
from headgate.model.access import ReadPolicy
from headgate.model.changes import Caller, operation_key
from headgate.model.contexts import parse_context
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName, check_label, check_options, parse_dataset_name
from headgate.rows import outcome
from headgate.store.diff import review_json
from headgate.store.documents import Json
from headgate.store.transactions import StoreBase

if TYPE_CHECKING:
    from headgate.rows.merge import MergeRequest, Side
    from headgate.rows.sources import Source


_MIN, _MAX = -(2**63), 2**64 - 1


def write_lines(rows: Sequence[Any]) -> bytes:
    """Return rows as lines of JSON.

    A number without a JSON form becomes text, which columns accept. A row with another value that
    has no JSON form raises `Invalid`.
    """
    return b"".join(_write(row, number) + b"\n" for number, row in enumerate(rows, start=1))


def _write(row: Any, number: int) -> bytes:
    try:
        # The fast path, for nearly all rows; orjson itself would write NaN and infinities as null.
        if not _has_non_finite(row):
            return orjson.dumps(row)
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(row))
    except (TypeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"row {number} cannot be loaded: {error}. Use text, numbers, dates, and lists and "
            "objects of these, or an Arrow table.",
            row=number,
        ) from error


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_non_finite, value))


def _plain(value: Any) -> Any:
    """Return the value in types that JSON has."""
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
        case int() if not _MIN <= value <= _MAX:
            return str(value)
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.decode()
        case datetime.date() | datetime.time():
            return value.isoformat()
    # A NumPy number; its type is known only to an optional library.
    return _plain(value.item()) if callable(getattr(value, "item", None)) else value


ENGINES = ("arrow", "spark")
# A file, a directory, `-`, rows in memory, or several of them.
SourceArgument: TypeAlias = Any


class RowOptions(TypedDict, total=False):
    """Options that every verb on rows accepts, in addition to its own parameters."""

    actor: str | None
    idempotency_key: str | None
    # Expected views by dataset; a branch with any other view raises a conflict.
    if_head: Mapping[str, str | None]
    timeout_seconds: float
    may_write_protected: bool


@dataclass(frozen=True)
class Rows:
    """Verbs on the rows of a store's tables. They need the extra `mutations`."""

    store: StoreBase
    # Starts Spark, and is therefore called only for the Spark engine.
    session: Callable[[str], Any]

    def mutate(self, branch: str, sql: str, **how: Unpack[RowOptions]) -> outcome.Outcome:
        """Execute a script of SQL statements over many tables, and publish its changes together.

        The statements are INSERT, UPDATE, DELETE, UPSERT and MERGE. Each statement sees the changes
        of the statements before it. Constraints are validated before the publication; a violation
        raises and changes nothing.

        :param branch: branch to change, or a chain such as `feature>master`.
        :param sql: statements, separated by semicolons.
        :param how: options of :class:`RowOptions`.
        """
        with _needing_extra():
            from headgate.rows.mutate import mutate  # noqa: PLC0415  (an optional extra)
        request = self._request("mutate", branch, {"sql": sql}, how)
        if self.store.evaluators is not None:
            return self.store.evaluators.mutate(self._parts(), request, sql)
        return mutate(self._parts(), request, sql)

    def load(
        self,
        branch: str,
        sources: Mapping[str, SourceArgument],
        *,
        mode: str = "append",
        engine: str = "arrow",
        create: bool = False,
        primary_key: Mapping[str, Sequence[str]] | None = None,
        **how: Unpack[RowOptions],
    ) -> outcome.Outcome:
        """Load files, directories or data in memory into tables, and publish them together.

        :param branch: branch to change, or a chain such as `feature>master`.
        :param sources: one source or a list of sources by dataset: a path, `-` for standard input,
            bytes, a list of dicts, or an Arrow table or data frame.
        :param mode: `append`, `merge` (insert or update by key) or `overwrite`.
        :param engine: `arrow` loads in this process, `spark` in a Spark session.
        :param create: create tables that the branch lacks, with the columns of their sources, in
            the same publication; the outcome has the columns in `created`.
        :param primary_key: columns of the key by dataset, for tables that the load creates.
        :param how: options of :class:`RowOptions`.
        """
        with _needing_extra():
            from headgate.rows.load import LoadMode, load  # noqa: PLC0415  (an optional extra)
        if mode not in set(LoadMode):
            raise Invalid(
                f"{mode!r} is not a load mode: choose append, merge or overwrite.", mode=mode
            )
        _check_engine(engine)
        listed = {
            parse_dataset_name(name): _several(argument) for name, argument in sources.items()
        }
        keys = {parse_dataset_name(name): tuple(key) for name, key in (primary_key or {}).items()}
        _check_creation(create, keys, listed, engine)
        body: dict[str, Any] = {"mode": mode}
        if create:
            body["create"] = {str(name): list(key) for name, key in keys.items()}
        creation = outcome.Creation(keys=keys) if create else None
        contents = None
        if how.get("idempotency_key"):
            from headgate.rows.sources import contents_of, names_of, with_stdin_read  # noqa: PLC0415  (an optional extra)

            if engine == "arrow":
                listed = with_stdin_read(listed)
            body["sources"], contents = names_of(listed), contents_of(listed)
        request = self._request("load", branch, body, how, contents=contents)
        if engine == "spark":
            from headgate.rows.load_spark import load_by_spark  # noqa: PLC0415  (an optional extra)

            return load_by_spark(
                self._parts(),
                request,
                listed,
                LoadMode(mode),
                session=self.session,
                contents=self.store.contents,
            )
        if self.store.evaluators is not None:
            return self.store.evaluators.load(self._parts(), request, listed, mode, creation)
        return load(self._parts(), request, listed, LoadMode(mode), creation)

    def merge(
        self,
        source: str,
        into: str,
        *,
        datasets: Sequence[str] = (),
        dry_run: bool = False,
        **how: Unpack[RowOptions],
    ) -> outcome.Outcome:
        """Merge the changes of a branch since the merge base into another branch.

        Conflicts raise one `MergeConflict` that lists them, and nothing changes.

        :param source: branch whose changes are merged, or id of a COMMITTED transaction.
        :param into: branch that receives them.
        :param datasets: datasets to merge; every dataset of the source by default.
        :param dry_run: return the outcome without a publication.
        :param how: options of :class:`RowOptions`.
        """
        with _needing_extra():
            from headgate.rows.merge import merge  # noqa: PLC0415  (an optional extra)
        body = {"source": source, "datasets": [str(parse_dataset_name(n)) for n in datasets]}
        request = self._request("merge", into, body, how)
        merging = self._merging(source, into, datasets, dry_run=dry_run)
        return merge(self._parts(), request, merging, self.store.evaluators)

    def review(
        self, branch: str, *, into: str | None = None, dataset: str | None = None, rows: int = 5
    ) -> list[Json]:
        """Return what a merge of a branch would change: one document for each dataset.

        The changes and conflicts are those of the merge's dry run. Datasets that the merge does not
        change are left out. Only the right to read is needed.

        :param into: branch that would receive the changes; the parent of the branch by default.
        :param dataset: the only dataset to merge; every dataset of the branch by default.
        :param rows: maximum number of sample rows or paths of each kind of change.
        """
        target = into or merge_target(self.store, branch)
        only = [dataset] if dataset else []
        found = preview_merge(self, branch, target, datasets=only, samples=rows)
        return [review_json(side) for side in found]

    def _merging(
        self, source: str, into: str, datasets: Sequence[str], *, dry_run: bool
    ) -> MergeRequest:
        from headgate.rows.merge import MergeRequest  # noqa: PLC0415  (an optional extra)

        builds, policy = self.store.settings.builds, self.store.policy
        return MergeRequest(
            source=source,
            datasets=tuple(parse_dataset_name(name) for name in datasets),
            dry_run=dry_run,
            fallbacks=tuple(
                name
                for name in builds.fallback_of(into)
                if policy is None or policy.shows_branch(name)
            ),
        )

    def optimize(
        self,
        dataset: str,
        *,
        branch: str,
        keep_snapshots: int = 100,
        engine: str = "arrow",
        **how: Unpack[RowOptions],
    ) -> outcome.Optimized:
        """Compact the small files of a table; the rows and the content id stay the same.

        :param keep_snapshots: number of newest Iceberg snapshots to keep in the metadata.
        :param engine: `arrow` rewrites in this process, `spark` in a Spark session.
        :param how: options of :class:`RowOptions`.
        """
        with _needing_extra():
            from headgate.rows.optimize import optimize, rewrite_in_memory, spark_rewrite  # noqa: PLC0415  (an optional extra)
        _check_engine(engine)
        request = self._request("optimize", branch, {"dataset": dataset}, how)
        return optimize(
            self._parts(),
            request,
            parse_dataset_name(dataset),
            keep_snapshots=keep_snapshots,
            rewrite=spark_rewrite(request, self.session)
            if engine == "spark"
            else rewrite_in_memory(self.store.evaluators, request),
        )

    def advise_optimize(self, dataset: str, *, branch: str) -> str | None:
        """Return advice to rewrite the table with Spark; None where Arrow is suitable."""
        with _needing_extra():
            from headgate.rows.optimize import advice_for  # noqa: PLC0415  (an optional extra)
        request = self._request("optimize", branch, {"dataset": dataset}, {})
        return advice_for(self._parts(), request, parse_dataset_name(dataset))

    def advise(self, sources: Mapping[str, list[str]]) -> str | None:
        """Return advice to load the files with Spark; None where Arrow is suitable."""
        with _needing_extra():
            from headgate.rows.load import advice_for  # noqa: PLC0415  (an optional extra)
        return advice_for(chain.from_iterable(sources.values()))

    def plan_schema(self, file: Path | str, *, branch: str) -> outcome.PlannedSchema:
        """Return the steps that applying a schema file to a branch would take."""
        return self.plan_schema_text(read_schema(file), file=str(file), branch=branch)

    def apply_schema(
        self, file: Path | str, *, branch: str, **how: Unpack[RowOptions]
    ) -> outcome.AppliedSchema:
        """Change the tables of a branch to match a schema file, in one publication.

        Existing rows must satisfy the new constraints; otherwise the call raises and changes
        nothing.
        """
        return self.apply_schema_text(read_schema(file), file=str(file), branch=branch, **how)

    def plan_schema_text(self, text: str, *, file: str, branch: str) -> outcome.PlannedSchema:
        """Do as `plan_schema` with the text of a schema; errors name `file` as its source."""
        with _needing_extra():
            from headgate.rows.schema_apply import plan  # noqa: PLC0415  (an optional extra)
            from headgate.rows.schema_file import parse_schema  # noqa: PLC0415  (an optional extra)
        return plan(self._parts(), branch, parse_schema(text, file))

    def apply_schema_text(
        self, text: str, *, file: str, branch: str, **how: Unpack[RowOptions]
    ) -> outcome.AppliedSchema:
        """Do as `apply_schema` with the text of a schema; errors name `file` as its source."""
        with _needing_extra():
            from headgate.rows.schema_apply import apply_schema  # noqa: PLC0415  (an optional extra)
            from headgate.rows.schema_file import parse_schema  # noqa: PLC0415  (an optional extra)
        request = self._request("schema", branch, {"schema": text}, how)
        return apply_schema(self._parts(), request, parse_schema(text, file), self.store.evaluators)

    def _parts(self) -> outcome.Parts:
        return outcome.Parts(
            database=self.store.database,
            versions=self.store.contents.tables,
            trees=self.store.trees,
            options=self.store.settings.environ,
        )

    def _request(
        self,
        kind: str,
        branch: str,
        body: Mapping[str, Any],
        how: RowOptions,
        *,
        contents: str | None = None,
    ) -> outcome.Request:
        check_options(how, RowOptions)
        named = how.get("actor")
        actor = check_label(named, what="an actor") if named else self.store.settings.actor
        heads = how.get("if_head") or {}
        key = operation_key(
            how.get("idempotency_key"),
            actor=actor,
            kind=kind,
            branch=getattr(parse_context(branch), "branch", branch),
            request={**body, "branch": branch, "if_head": dict(heads)},
            contents=contents,
        )
        return outcome.Request(
            branch=branch,
            caller=Caller(
                actor=actor,
                may_write_protected=how.get(
                    "may_write_protected", self.store.caller.may_write_protected
                ),
            ),
            operation=key,
            timeout_seconds=how.get("timeout_seconds", outcome.TIMEOUT_SECONDS),
            if_heads={
                parse_dataset_name(name): TransactionId(id) if id else None
                for name, id in heads.items()
            },
            interrupt=self.store.interrupt or outcome.Interrupt(),
        )


def merge_target(store: StoreBase, branch: str) -> str:
    """Return the branch that a merge of this branch is for: its parent, else the primary."""
    line = store.database.read(lambda c: load_branch_name(c, branch))
    return (line and line.parent) or store.settings.builds.branch


def preview_merge(
    rows: Rows,
    source: str,
    into: str,
    *,
    datasets: Sequence[str] = (),
    samples: int,
    most_rows: int | None = None,
) -> list[Side]:
    """Return the sides of a merge that it would change, and of conflicts, by its dry run.

    :param most_rows: compare only the metadata of larger tables.
    """
    with _needing_extra():
        from headgate.rows.merge import find_datasets, preview  # noqa: PLC0415  (an optional extra)
    store = rows.store
    merging = rows._merging(source, into, datasets, dry_run=True)
    merging = replace(merging, samples=samples, most_rows=most_rows)
    names = store.database.read(lambda c: find_datasets(c, merging, into=into))
    # All constraints count, also those with datasets that the actor may not read.
    parts = replace(rows._parts(), database=store.full_database)
    found = preview(parts, into, merging, names, store.evaluators)
    if (policy := store.policy) is not None:
        for side in found:
            side.conflicts = [_shown_conflict(one, side, policy) for one in side.conflicts]
    return found


def _shown_conflict(conflict: Json, side: Side, policy: ReadPolicy) -> Json:
    """Return a conflict, without the names and rows of a dataset that the policy hides."""
    named = (conflict["dataset"], conflict.get("refers_to") or conflict["dataset"])
    if all(map(policy.shows_dataset, named)):
        return conflict
    reason = "it breaks a constraint with a dataset that this token may not read"
    return side.conflict("hidden", reason)


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise Invalid(f"{engine!r} is not an engine: choose arrow or spark.", engine=engine)


def _check_creation(
    create: bool,
    keys: Mapping[DatasetName, Sequence[str]],
    sources: Mapping[DatasetName, Any],
    engine: str,
) -> None:
    if create and engine != "arrow":
        raise Invalid(
            "a load by Spark creates no table: its columns are inferred by Arrow. Create the table "
            "with `headgate schema apply`, or load a first file with --create and without "
            "--engine spark.",
            engine=engine,
        )
    if keys and not create:
        raise Invalid("a primary key is given only for tables that a load creates: add --create.")
    for name in keys:
        if name not in sources:
            raise Invalid(
                f"a primary key is given for {name}, which is not loaded.", dataset=str(name)
            )


def read_given(sources: Mapping[str, SourceArgument]) -> dict[str, list[Source]]:
    """Read all rows of each dataset's sources, with the file of each source."""
    with _needing_extra():
        from headgate.rows.sources import read_sources  # noqa: PLC0415  (an optional extra)
    return {
        name: list(chain.from_iterable(map(read_sources, _several(argument))))
        for name, argument in sources.items()
    }


def _several(argument: SourceArgument) -> list[Any]:
    """Return a list of sources; a list of dicts is one source."""
    if not isinstance(argument, list | tuple):
        return [_source(argument)]
    if argument and isinstance(argument[0], dict):
        return [write_lines(argument)]
    return [_source(item) for item in argument]


def _source(item: Any) -> Any:
    """Return a path or bytes unchanged, and other rows in memory as an Arrow table."""
    if isinstance(item, str | Path | bytes | StoredContent):
        return item
    if not any(hasattr(item, method) for method in ("__arrow_c_stream__", "__arrow_c_array__")):
        raise Invalid(
            f"a {type(item).__name__} cannot be loaded: use a file, bytes, a list of dicts, or "
            "an Arrow table, such as a pyarrow table or a data frame."
        )
    import pyarrow as pa  # noqa: PLC0415  (an optional extra, and slow)

    return pa.table(item)


def read_schema(file: Path | str) -> str:
    """Return the text of a schema file."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise InvalidSchemaFile(file=str(file), line=1, reason=reason) from error
    except UnicodeDecodeError as error:
        raise InvalidSchemaFile(file=str(file), line=1, reason=str(error)) from error


class _needing_extra:  # noqa: N801  (read as a verb where it is used)
    """Raise `MissingExtra` in place of the error that a missing library causes."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # A broken import inside the package is a defect, not a missing extra.
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("headgate"):
            raise MissingExtra(feature="changing rows without Spark", extra="mutations") from error
