"""`headgate demo`: the worked example, on real Spark and a real Git repository."""

from __future__ import annotations

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
from headgate.catalog.attempts import dispatch_attempt, equip_attempt
from headgate.catalog.records import list_branches, load_branch, load_dataset, views_on
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.cli.build import BuildProgress
from headgate.cli.format import job_tree
from headgate.cli.init import CATALOG, WAREHOUSE, make_store
from headgate.cli.output import JsonOption, show_json
from headgate.errors import AttemptSuperseded, StatementFailed, WorkFailed
from headgate.iceberg.authorization import job_id
from headgate.model.graph_render import to_tree
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import BuildState, TransactionType
from headgate.settings import FILE_NAME, load_settings, with_actor
from headgate.spark.jvm import SharedJvm
from headgate.spark.session import bind_catalog, catalog_conf
from headgate.spark.sql import run_sql
from headgate.spark.workplace import launch_request
from headgate.store.embedded import Store

# The pipeline of `headgate demo`: three datasets, A to B to C.

TARGET = "shop.totals"

_SALES = '''\
"""A: what was sold. Made here; a real one would be ingested."""

from headgate.transforms import Output, transform_df


@transform_df(Output("shop.sales"))
def sales(ctx):
    regions = ("north", "south", "west")
    rows = [(n, regions[n % 3], n * 10, n % 4 == 0) for n in range(1, 301)]
    schema = "id long, region string, amount long, refund boolean"
    return ctx.spark_session.createDataFrame(rows, schema)
'''

_REGIONS = '''\
"""B: one row per sale that counts, with its region."""

from pyspark.sql import functions as F

from headgate.transforms import Input, Output, transform_df


@transform_df(Output("shop.regions"), sales=Input("shop.sales"))
def regions(sales):
    return sales.where(~F.col("refund")).select("region", "amount")
'''

CHANGED_REGIONS = '''\
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

FILES = {
    "pipeline/__init__.py": "",
    "pipeline/sales.py": _SALES,
    "pipeline/regions.py": _REGIONS,
    "pipeline/totals.py": _TOTALS,
    ".gitignore": ".headgate/\nheadgate.toml\n",
}


# The demo's zombie: a live Spark session whose attempt somebody has given up.

_KEY = "nightly"
_LEASE_SECONDS = 60
_MASTER = "master"


class Zombie:
    """An attempt with an open transaction, and a session that can write nothing else."""

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
            Opener(actor="first driver", lease_seconds=_LEASE_SECONDS, attempt=self._attempt),
        )
        token = secrets.token_urlsafe(32)
        outputs = {dataset: self._transaction.id}
        scope = {"branch": _MASTER, "inputs": {}, "outputs": outputs}
        equip_attempt(hg.database, self._attempt, token=token, scope=scope)
        conf = catalog_conf(
            uri=hg.build_parts.workplace.url,
            warehouse=f"job:{job_id(self._attempt.key, self._attempt.epoch)}",
            token=token,
        )
        self._session = bind_catalog(hg.spark(_MASTER), conf)

    def write(self, region: str, total: int) -> None:
        """Adds a row to what the attempt is about to publish."""
        run_sql(self._session, f"insert into {self._dataset} values ('{region}', {total})")

    def supersede(self) -> None:
        """A newer attempt of the same work begins."""
        dispatch_attempt(
            self._hg.database, _KEY, actor="second driver", lease_seconds=_LEASE_SECONDS
        )

    def go_on(self) -> Iterator[tuple[str, str]]:
        """What the old attempt tries, and what it is told; it must be told no."""
        try:
            self.write("west", -1)
        except (AttemptSuperseded, StatementFailed) as refused:
            yield "its next row, written by Spark:", refused.message
        else:
            raise WorkFailed("the zombie could write; that must never happen.")
        options = CommitOptions(actor="first driver", attempt=self._attempt)
        try:
            commit_transactions(
                self._hg.database, self._hg.contents, [self._transaction.id], options
            )
        except AttemptSuperseded as refused:
            yield "its commit:", refused.message
        else:
            raise WorkFailed("the zombie was let in; that must never happen.")


app = typer.Typer()


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Work in this new directory and keep it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Watch a branch, a build, a merge and a promotion that computes nothing.

    Example: headgate demo
    """
    began = time.monotonic()
    directory = keep or Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    console = Console(stderr=json, highlight=False)
    try:
        facts = _Demo(console, directory).play()
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - began
    console.print(f"\n[dim]{seconds:.0f} s. `headgate demo --keep DIR` leaves it to play with.[/]")
    if json:
        show_json(facts)


class _Demo:
    def __init__(self, console: Console, directory: Path) -> None:
        self._console = console
        self._directory = directory

    def play(self) -> dict[str, Any]:
        self._make_project()
        with self._start_spark() as jvm, self._open(jvm) as hg:
            first = self._build_master(hg)
            before = self._views(hg)
            feature = self._build_feature(hg)
            difference = self._show_difference(hg)
            isolated = self._show_isolation(hg, before)
            promoted = self._promote(hg)
            refused = self._show_zombie(hg)
        return {
            "master": first.to_json(),
            "feature": feature.to_json(),
            "difference": difference,
            "isolated": isolated,
            "promoted": promoted.to_json(),
            "zombie_refused": refused,
        }

    # --- the steps --------------------------------------------------------------------------

    def _make_project(self) -> None:
        self._title("A pipeline in a Git repository, and a store beside it")
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("init", "--quiet", "--initial-branch=master")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=three datasets")
        make_store(
            self._directory / FILE_NAME, catalog=CATALOG, warehouse=WAREHOUSE, branch="master"
        )
        self._did("git init && headgate init", "no server: one SQLite file and a directory")

    def _start_spark(self) -> SharedJvm:
        """One JVM for all builds and sessions, so that a watcher waits for it only once."""
        settings = load_settings(self._directory)
        log = self._directory / ".headgate" / "spark.log"
        with self._console.status("  Spark is starting"):
            jvm = SharedJvm.start(launch_request(settings, log))
        self._say("a local Spark has started, with Iceberg on board")
        return jvm

    def _open(self, jvm: SharedJvm) -> Store:
        return Store(with_actor(load_settings(self._directory), "ana"), jvm=jvm)

    def _build_master(self, hg: Store) -> BuildOutcome:
        self._title("master: publish the logic, build A, B and C")
        self._publish(hg)
        return self._build(hg, "master", ())

    def _build_feature(self, hg: Store) -> BuildOutcome:
        self._title("feature: change how B is made; C depends on it; A is not touched")
        self._git("checkout", "--quiet", "-b", "feature")
        (self._directory / "pipeline" / "regions.py").write_text(CHANGED_REGIONS)
        self._git("commit", "--quiet", "--all", "--message=count refunds as negative")
        self._did("git checkout -b feature; edit pipeline/regions.py; git commit", "")
        self._publish(hg)
        self._show_plan(hg)
        return self._build(hg, "feature", ("master",))

    def _show_plan(self, hg: Store) -> None:
        plan = hg.decide([TARGET], branch="feature", fallback=["master"], upstream=True)
        self._did(f"headgate plan {TARGET} --upstream -b feature --graph tree", "")
        for line in to_tree(hg.graph(plan)).splitlines():
            self._console.print(Text(f"    {line}"))

    def _show_difference(self, hg: Store) -> dict[str, Any]:
        self._title("review: what the change does to the data, before anybody else sees it")
        found = hg.differences("master", "feature>master", dataset=TARGET, rows=3, key=("region",))
        assert isinstance(found, dict)
        counts = found["counts"]
        self._did(
            f'headgate diff {TARGET} --from master --to "feature>master" --key region',
            f"{counts['changed']} rows changed, {counts['added']} added, "
            f"{counts['removed']} removed",
        )
        for row in found["samples"]["changed"]:
            [region], [before], [after] = (row[side].values() for side in ("key", "from", "to"))
            self._say(f"{region:<6} total {before:>6} → {after:>6}")
        return found

    def _show_isolation(self, hg: Store, before: dict[str, str]) -> bool:
        self._title("both branches at once: master still shows what it showed")
        for context in ("master", "feature>master"):
            rows = run_sql(hg.spark(context), f"select * from {TARGET} order by region").rows
            shown = ", ".join(f"{row['region']} {row['total']}" for row in rows)
            self._did(f'headgate sql -b "{context}" "select * from {TARGET}"', shown)
        same = before == self._views(hg)
        branches = hg.database.read(
            lambda c: list_branches(c, load_dataset(c, parse_dataset_name("shop.sales")).id)
        )
        self._say(f"master's views of A, B and C are the same as before: [bold]{same}[/]")
        self._say(f"A has the branches: {', '.join(b.name for b in branches)} (no feature)")
        return same and [b.name for b in branches] == ["master"]

    def _promote(self, hg: Store) -> BuildOutcome:
        self._title("merge in Git, build on master: the tested data is promoted, not recomputed")
        self._git("checkout", "--quiet", "master")
        self._git("merge", "--quiet", "--no-ff", "--no-edit", "feature")
        self._did("git checkout master && git merge feature", "")
        self._publish(hg)
        outcome = self._build(hg, "master", ())
        jobs = sum(job.spark_jobs for job in outcome.jobs)
        self._say(f"[bold]{jobs} Spark jobs[/]: master now shows the very versions of feature")
        same = self._versions(hg, "master") == self._versions(hg, "feature")
        self._say(f"the same Iceberg metadata files on both branches: [bold]{same}[/]")
        return outcome

    def _show_zombie(self, hg: Store) -> bool:
        self._title("a zombie: a nightly job's driver was given up, wakes up and goes on writing")
        zombie = Zombie(hg, TARGET)
        self._say("the first attempt writes a row; master's readers do not see it yet")
        zombie.write("east", 1)
        zombie.supersede()
        self._say("the scheduler takes it for dead and starts a second attempt")
        for what, refusal in zombie.go_on():
            self._say(f"{what} [green]refused[/]: {refusal}")
        rows = run_sql(hg.spark("master"), f"select count(*) as n from {TARGET}").rows
        self._say(f"master has {rows[0]['n']} rows, as before")
        return bool(rows[0]["n"] == 3)

    # --- small things -----------------------------------------------------------------------

    def _publish(self, hg: Store) -> None:
        found = hg.publish_jobspecs(self._directory)
        names = ", ".join(o for spec in found.published for o in spec.body["outputs"])
        self._did("headgate jobspecs publish", f"on {found.source.branch}: {names}")

    def _build(self, hg: Store, branch: str, fallback: Sequence[str]) -> BuildOutcome:
        chain = " > ".join((branch, *fallback))
        self._did(f"headgate build {TARGET} --upstream -b {branch}", "")
        with BuildProgress(chain, self._console) as progress:
            outcome = hg.build(
                [TARGET],
                branch=branch,
                fallback=fallback,
                upstream=True,
                # Into a pipe the tree at the end says it all.
                watch=progress.show if self._console.is_terminal else lambda jobs: None,
            )
        self._console.print(Padding(job_tree(chain, outcome.live_jobs()), (0, 0, 0, 4)))
        if outcome.state is not BuildState.SUCCEEDED:
            raise WorkFailed(f"the demo's build on {branch} {outcome.state}.")
        return outcome

    def _views(self, hg: Store) -> dict[str, str]:
        branches = hg.database.read(list_branches)
        return {str(b.dataset): str((b.head, b.view)) for b in branches if b.name == "master"}

    def _versions(self, hg: Store, branch: str) -> dict[str, str | None]:
        """Of B and C, the metadata file that a branch shows."""
        names = [parse_dataset_name(text) for text in ("shop.regions", TARGET)]
        views = hg.database.read(lambda c: views_on(c, names, branch))
        return {str(n): t.version.location if t.version else None for n, t in views.items()}

    def _git(self, *words: str) -> None:
        who = ("-c", "user.name=Ana", "-c", "user.email=ana@example.org")
        subprocess.run(["git", "-C", str(self._directory), *who, *words], check=True)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold cyan]▍{text}[/]")

    def _did(self, command: str, result: str) -> None:
        self._console.print(f"  [dim]$[/] {command}")
        if result:
            self._say(result)

    def _say(self, text: str) -> None:
        self._console.print(Padding(text, (0, 0, 0, 4)))
