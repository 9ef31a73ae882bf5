"""The doctor: looks at a store from end to end, changes nothing, and says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headgate.catalog.condemning import find_condemned
from headgate.catalog.database import Connection, Database
from headgate.catalog.forgetting import remembered_since
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.migrate import NEWEST, find_version
from headgate.catalog.soundness import (
    Finding,
    check_counter,
    check_intents,
    check_leases,
    check_log_replays,
    check_sqlite,
    check_views_follow_log,
    count_silent_attempts,
)
from headgate.catalog.soundness_branches import (
    check_branches,
    check_open,
    check_tags,
    check_versions,
    list_shown,
)
from headgate.catalog.soundness_histories import check_all_histories, check_some_histories
from headgate.errors import HeadgateError
from headgate.files.objects import Objects
from headgate.model.names import check_branch_name
from headgate.model.nouns import DatasetKind
from headgate.model.ports import ObjectStore
from headgate.settings import Settings
from headgate.spark.jars import coordinates_for, find_cached
from headgate.spark.java import find_java_home
from headgate.spark.library import spark_home
from headgate.storage.opening import open_store
from headgate.upkeep.content import Trees, check_bundles, check_trees, walk_trees
from headgate.upkeep.examined import Check, Examined, chained, from_error, make_check
from headgate.upkeep.probing import probe
from headgate.upkeep.table_content import check_tables


def examine(settings: Settings, *, deep: bool = False) -> Examined:
    """Looks in seconds at all that a store needs to work; `deep`: at every row and byte."""
    examined = Examined()
    examined.checks.append(make_check("settings", _check_settings(settings)))
    database = Database(settings.catalog)
    try:
        examined.checks.append(make_check("catalog", _check_catalog(database, deep=deep)))
        readable = examined.checks[-1].ok
        if readable:
            examined.checks += _look(database, deep=deep)
        examined.checks += check_bytes(settings, database if readable else None, deep=deep)
    finally:
        database.close()
    examined.checks.append(_note_spark(settings))
    return examined


def _check_settings(settings: Settings) -> Iterator[Finding]:
    for name in (settings.builds.branch, *(settings.builds.fallback or ())):
        try:
            check_branch_name(name)
        except HeadgateError as error:
            yield from_error(error, where="[builds]")


def _check_catalog(database: Database, *, deep: bool) -> Iterator[Finding]:
    """It answers, has the schema that this release knows, and its file is whole."""
    where = database.where
    if database.path is not None and not Path(database.path).is_file():
        # Looking would make it.
        yield Finding(
            what="there is no such file",
            where=where,
            remedy="Check `[store] catalog`, restore the file from a backup, or make a new store "
            "with `headgate init`.",
        )
        return
    with database.raw() as connection:
        found = find_version(connection)
        if found != NEWEST:
            newer = found > NEWEST
            yield Finding(
                what=f"its schema version is {found}, this release knows {NEWEST}",
                where=where,
                remedy="Upgrade Headgate." if newer else "Run `headgate migrate`.",
            )
            return
        if database.dialect == "sqlite":
            yield from check_sqlite(connection, deep=deep)


def _look(database: Database, *, deep: bool) -> list[Check]:
    try:
        return database.read(lambda connection: check_rows(connection, deep=deep))
    except HeadgateError as error:
        return [make_check("rows", [from_error(error, where=database.where)])]


def check_rows(connection: Connection, *, deep: bool) -> list[Check]:
    """All that the catalog's rows can tell, on one picture of them."""
    log = [check_counter(connection), check_views_follow_log(connection)]
    if deep:
        log.append(check_log_replays(connection))
    silent = count_silent_attempts(connection)
    told = [f"{silent} attempts never said how they ended; newer ones take over"] if silent else []
    histories = check_all_histories if deep else check_some_histories
    return [
        make_check("log", chained(*log)),
        make_check("branches", chained(check_branches(connection), check_open(connection))),
        make_check("tags", check_tags(connection)),
        make_check("histories", histories(connection)),
        make_check("versions", check_versions(connection, deep=deep)),
        make_check("leases", check_leases(connection), told),
        make_check("intents", check_intents(connection)),
    ]


# --- bytes ----------------------------------------------------------------------------------


def check_bytes(settings: Settings, database: Database | None, *, deep: bool) -> list[Check]:
    try:
        store = open_store(settings.warehouse, settings.environ)
    except HeadgateError as error:
        return [make_check("storage", [from_error(error, where=settings.warehouse)])]
    checks = [make_check("storage", _check_storage(store))]
    if database is None or not checks[0].ok:
        return checks
    shown = database.read(list_shown)
    files = [version for version in shown if version.kind is DatasetKind.FILES]
    trees = walk_trees(Objects(store), files)
    checks += [
        make_check("objects", check_trees(store, trees, deep=deep)),
        make_check("condemned", _check_condemned(database, store, trees)),
        make_check(
            "tables",
            check_tables(
                store,
                [version for version in shown if version.kind is DatasetKind.TABLE],
                since=database.read(remembered_since),
                options=settings.environ,
                deep=deep,
            ),
        ),
        make_check("bundles", check_bundles(store, _bundles(database), deep=deep)),
    ]
    return checks


def _check_storage(store: ObjectStore) -> Iterator[Finding]:
    """It can be written, read and deleted."""
    try:
        probe(store)
    except HeadgateError as error:
        yield Finding(
            what=error.message,
            where=store.url,
            remedy="Check `[store] warehouse`, its rights, and the room that is left there.",
        )


def _check_condemned(database: Database, store: ObjectStore, trees: Trees) -> Iterator[Finding]:
    """Nothing that is shown is condemned: the door would refuse to use it again."""
    objects = Objects(store)
    places = {
        objects.location(digest): where
        for digest, where in trees.needed.items()
        if digest not in trees.unreadable
    }
    for location in sorted(database.read(lambda connection: find_condemned(connection, places))):
        yield Finding(
            what=f"object {location} is condemned, though it is needed",
            where=places[location],
            remedy="Run `headgate cleanup`: it spares what is needed again.",
        )


def _bundles(database: Database) -> dict[str, str]:
    """The bundles of what is published now, each with one JobSpec that names it."""
    found: dict[str, str] = {}
    for spec in database.read(load_jobspecs):
        digest = spec.body.get("jobspec", {}).get("bundle")
        if digest is not None:
            outputs = ", ".join(spec.body["outputs"])
            found.setdefault(digest, f"the JobSpec of {outputs} on {spec.branch}")
    return found


# --- Spark ----------------------------------------------------------------------------------


def _note_spark(settings: Settings) -> Check:
    """For information only: a store without Spark is a sound store."""
    check = Check(name="spark")
    try:
        check.notes.append(f"Spark is in {spark_home()}")
        check.notes.append(f"Java is in {find_java_home(settings.environ, settings.cache)}")
    except HeadgateError as error:
        check.notes.append(error.message)
        return check
    for coordinate in coordinates_for(settings.warehouse):
        cached = find_cached(settings.cache, coordinate)
        state = "at hand" if cached else "not fetched yet: the first use of Spark does that"
        check.notes.append(f"{coordinate} is {state}")
    return check
