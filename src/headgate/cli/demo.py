"""`headgate demo`: a worked example on Spark and a Git repository.

The pipeline has three datasets, A to B to C: `shop.sales`, `shop.regions` and `shop.totals`.
"""

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headgate.attempts import CommitOptions, commit_transactions
from headgate.builds.report import BuildOutcome
from headgate.catalog.attempts import dispatch_attempt, set_attempt_scope
from headgate.catalog.records import list_branches, load_branch, load_dataset, views_on
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.cli.build import BuildProgress, job_tree
from headgate.cli.init import CATALOG, WAREHOUSE, make_store
from headgate.cli.output import JsonOption, command, show_json
from headgate.errors import AttemptSuperseded, StatementFailed, WorkFailed
from headgate.iceberg.service import job_id
from headgate.model.changes import Caller
from headgate.model.graph_render import to_tree
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BuildState, TransactionType
from headgate.settings import FILE_NAME, load_settings, with_actor
from headgate.spark.engines import SharedJvm
from headgate.spark.session import bind_catalog, catalog_conf, launch_request
from headgate.spark.sql import run_sql
from headgate.store.embedded import Store

_TARGET = "shop.totals"

_SALES = '''\
"""A: sales. Generated here; a real pipeline would ingest them."""

from headgate.transforms import Output, transform_df


@transform_df(Output("shop.sales"))
def sales(ctx):
    regions = ("north", "south", "west")
    rows = [(n, regions[n % 3], n * 10, n % 4 == 0) for n in range(1, 301)]
    schema = "id long, region string, amount long, refund boolean"
    return ctx.spark_session.createDataFrame(rows, schema)
'''

_REGIONS = '''\
"""B: one row per sale without refunds, with its region."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.regions"), sales=Input("shop.sales"))
def regions(sales):
    return sales.where(~F.col("refund")).select("region", "amount")
'''

_CHANGED_REGIONS = '''\
"""B: one row per sale, with its region; a refund counts as negative."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.regions"), sales=Input("shop.sales"))
def regions(sales):
    amount = F.when(F.col("refund"), -F.col("amount")).otherwise(F.col("amount"))
    return sales.select("region", amount.alias("amount"))
'''

_TOTALS = '''\
"""C: the total of each region."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.totals"), regions=Input("shop.regions"))
def totals(regions):
    return regions.groupBy("region").agg(F.sum("amount").alias("total"))
'''

_FILES = {
    "pipeline/__init__.py": "",
    "pipeline/sales.py": _SALES,
    "pipeline/regions.py": _REGIONS,
    "pipeline/totals.py": _TOTALS,
    ".gitignore": ".headgate/\nheadgate.toml\n",
}

_KEY = "nightly"
_LEASE_SECONDS = 60
_MASTER = "master"


class _Zombie:
    """A superseded attempt with an open transaction and a live Spark session scoped to it."""

    def __init__(self, hg: Store, dataset: str) -> None:
        self._hg = hg
        self._dataset = dataset
        self._attempt = dispatch_attempt(
            hg.database, _KEY, actor="first driver", lease_seconds=_LEASE_SECONDS
        ).ref
        name = parse_dataset_name(dataset)
        branch = hg.database.read(lambda c: load_branch(c, load_dataset(c, name), _MASTER))
        [self._transaction] = open_transactions(
            hg.database,
            [Opening(branch=branch.id, type=TransactionType.UPDATE)],
            Opener(
                caller=Caller(actor="first driver", attempt=self._attempt),
                lease_seconds=_LEASE_SECONDS,
            ),
        )
        token = secrets.token_urlsafe(32)
        scope = {"branch": _MASTER, "inputs": {}, "outputs": {dataset: self._transaction.id}}
        set_attempt_scope(hg.database, self._attempt, token=token, scope=scope)
        conf = catalog_conf(
            uri=hg.build_parts.workplace.url,
            warehouse=f"job:{job_id(self._attempt.key, self._attempt.epoch)}",
            token=token,
        )
        self._session = bind_catalog(hg.spark(_MASTER), conf)

    def write(self, region: str, total: int) -> None:
        run_sql(self._session, f"insert into {self._dataset} values ('{region}', {total})")

    def supersede(self) -> None:
        dispatch_attempt(
            self._hg.database, _KEY, actor="second driver", lease_seconds=_LEASE_SECONDS
        )

    def try_to_publish(self) -> Iterator[tuple[str, str]]:
        """Write and commit as the old attempt; yield each step and its error, which must occur."""
        try:
            self.write("west", -1)
        except (AttemptSuperseded, StatementFailed) as error:
            yield "its next INSERT:", error.message
        else:
            raise WorkFailed("the superseded attempt could write: this is a defect of Headgate.")
        options = CommitOptions(caller=Caller(actor="first driver", attempt=self._attempt))
        try:
            commit_transactions(
                self._hg.database, self._hg.contents, [self._transaction.id], options
            )
        except AttemptSuperseded as error:
            yield "its commit:", error.message
        else:
            raise WorkFailed("the superseded attempt could commit: this is a defect of Headgate.")


@command
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Run in this new directory and keep it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a worked example on Spark: branch, build, merge and promotion without recomputation.

    Example: headgate demo
    """
    started = time.monotonic()
    directory = keep or Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    console = Console(stderr=json, highlight=False)
    try:
        facts = _Demo(console, directory).run()
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    console.print(f"\n[dim]{seconds:.0f} s. `headgate demo --keep DIR` keeps the store.[/]")
    if json:
        show_json(facts)


class _Demo:
    def __init__(self, console: Console, directory: Path) -> None:
        self._console = console
        self._directory = directory

    def run(self) -> dict[str, Any]:
        self._make_project()
        settings = with_actor(load_settings(self._directory), "ana")
        with self._start_spark() as jvm, Store(settings, jvm=jvm) as hg:
            self._title("master: publish the logic, build A, B and C")
            self._publish(hg)
            first = self._build(hg, "master", ())
            before = self._views(hg)
            feature = self._build_feature(hg)
            difference = self._show_difference(hg)
            isolated = self._show_isolation(hg, before)
            promoted = self._promote(hg)
            rejected = self._show_zombie(hg)
        return {
            "master": first.to_json(),
            "feature": feature.to_json(),
            "difference": difference,
            "isolated": isolated,
            "promoted": promoted.to_json(),
            "zombie_refused": rejected,
        }

    def _make_project(self) -> None:
        self._title("A pipeline in a Git repository, with a store")
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("init", "--quiet", "--initial-branch=master")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=three datasets")
        make_store(
            self._directory / FILE_NAME, catalog=CATALOG, warehouse=WAREHOUSE, branch="master"
        )
        self._show_command(
            "git init && headgate init", "an embedded store: a SQLite file and a directory"
        )

    def _start_spark(self) -> SharedJvm:
        """Start one JVM for all builds and sessions: the start takes seconds."""
        settings = load_settings(self._directory)
        log = self._directory / ".headgate" / "spark.log"
        with self._console.status("  Spark is starting"):
            jvm = SharedJvm.start(launch_request(settings, log))
        self._show("local Spark with Iceberg is running")
        return jvm

    def _build_feature(self, hg: Store) -> BuildOutcome:
        self._title("feature: change the logic of B; C depends on it, A does not")
        self._git("checkout", "--quiet", "-b", "feature")
        (self._directory / "pipeline" / "regions.py").write_text(_CHANGED_REGIONS)
        self._git("commit", "--quiet", "--all", "--message=count refunds as negative")
        self._show_command("git checkout -b feature; edit pipeline/regions.py; git commit", "")
        self._publish(hg)
        self._show_plan(hg)
        return self._build(hg, "feature", ("master",))

    def _show_plan(self, hg: Store) -> None:
        plan = hg.decide([_TARGET], branch="feature", fallback=["master"], upstream=True)
        self._show_command(f"headgate plan {_TARGET} --upstream -b feature --graph tree", "")
        for line in to_tree(hg.graph(plan)).splitlines():
            self._console.print(Text(f"    {line}"))

    def _show_difference(self, hg: Store) -> dict[str, Any]:
        self._title("review: compare the data before the merge")
        found = hg.differences("master", "feature>master", dataset=_TARGET, rows=3, key=("region",))
        assert isinstance(found, dict)
        counts = found["counts"]
        self._show_command(
            f'headgate diff {_TARGET} --from master --to "feature>master" --key region',
            f"{counts['changed']} rows changed, {counts['added']} added, "
            f"{counts['removed']} removed",
        )
        for row in found["samples"]["changed"]:
            [region], [before], [after] = (row[side].values() for side in ("key", "from", "to"))
            self._show(f"{region:<6} total {before:>6} → {after:>6}")
        return found

    def _show_isolation(self, hg: Store, before: dict[str, str]) -> bool:
        self._title("isolation: master is unchanged")
        for context in ("master", "feature>master"):
            rows = run_sql(hg.spark(context), f"select * from {_TARGET} order by region").rows
            shown = ", ".join(f"{row['region']} {row['total']}" for row in rows)
            self._show_command(f'headgate sql -b "{context}" "select * from {_TARGET}"', shown)
        same = before == self._views(hg)
        branches = hg.database.read(
            lambda c: list_branches(c, load_dataset(c, parse_dataset_name("shop.sales")).id)
        )
        self._show(f"the views of A, B and C on master are unchanged: [bold]{same}[/]")
        self._show(f"A has the branches: {', '.join(b.name for b in branches)} (no feature)")
        return same and [b.name for b in branches] == ["master"]

    def _promote(self, hg: Store) -> BuildOutcome:
        self._title("merge in Git, build on master: the tested data is promoted, not recomputed")
        self._git("checkout", "--quiet", "master")
        self._git("merge", "--quiet", "--no-ff", "--no-edit", "feature")
        self._show_command("git checkout master && git merge feature", "")
        self._publish(hg)
        outcome = self._build(hg, "master", ())
        jobs = sum(job.spark_jobs for job in outcome.jobs)
        self._show(f"[bold]{jobs} Spark jobs[/]: master now shows the versions of feature")
        same = self._versions(hg, "master") == self._versions(hg, "feature")
        self._show(f"the same Iceberg metadata files on both branches: [bold]{same}[/]")
        return outcome

    def _show_zombie(self, hg: Store) -> bool:
        self._title("a zombie: a superseded driver of a nightly job continues to write")
        zombie = _Zombie(hg, _TARGET)
        self._show("the first attempt writes a row; readers of master do not see it yet")
        zombie.write("east", 1)
        zombie.supersede()
        self._show("the scheduler considers it dead and starts a second attempt")
        for step, error in zombie.try_to_publish():
            self._show(f"{step} [green]rejected[/]: {error}")
        rows = run_sql(hg.spark("master"), f"select count(*) as n from {_TARGET}").rows
        self._show(f"master has {rows[0]['n']} rows, as before")
        return bool(rows[0]["n"] == 3)

    def _publish(self, hg: Store) -> None:
        found = hg.publish_jobspecs(self._directory)
        names = ", ".join(o for spec in found.published for o in spec.body["outputs"])
        self._show_command("headgate jobspecs publish", f"on {found.source.branch}: {names}")

    def _build(self, hg: Store, branch: str, fallback: Sequence[str]) -> BuildOutcome:
        chain = " > ".join((branch, *fallback))
        self._show_command(f"headgate build {_TARGET} --upstream -b {branch}", "")
        with BuildProgress(chain, self._console) as progress:
            outcome = hg.build(
                [_TARGET],
                branch=branch,
                fallback=fallback,
                upstream=True,
                # Off a terminal the tree at the end is enough.
                watch=progress.show if self._console.is_terminal else lambda jobs: None,
            )
        self._console.print(Padding(job_tree(chain, outcome.live_jobs()), (0, 0, 0, 4)))
        if outcome.state is not BuildState.SUCCEEDED:
            raise WorkFailed(f"the build on {branch} {outcome.state}.")
        return outcome

    def _views(self, hg: Store) -> dict[str, str]:
        branches = hg.database.read(list_branches)
        return {str(b.dataset): str((b.head, b.view)) for b in branches if b.name == "master"}

    def _versions(self, hg: Store, branch: str) -> dict[str, str | None]:
        """Return the metadata files of B and C that a branch shows."""
        names = [parse_dataset_name(text) for text in ("shop.regions", _TARGET)]
        views = hg.database.read(lambda c: views_on(c, names, branch))
        return {str(n): t.version.location if t.version else None for n, t in views.items()}

    def _git(self, *words: str) -> None:
        identity = ("-c", "user.name=Ana", "-c", "user.email=ana@example.org")
        subprocess.run(["git", "-C", str(self._directory), *identity, *words], check=True)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold cyan]▍{text}[/]")

    def _show_command(self, command: str, result: str) -> None:
        self._console.print(f"  [dim]$[/] {command}")
        if result:
            self._show(result)

    def _show(self, text: str) -> None:
        self._console.print(Padding(text, (0, 0, 0, 4)))
