"""A store with thousands of datasets and their JobSpecs, all built earlier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.filling import ACTOR
from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.publish import publish
from headgate.catalog.records import branches_named, find_datasets
from headgate.model.changes import AddTransaction, Caller, Provenance, PublishRequest
from headgate.model.freshness import Fingerprint, fingerprint
from headgate.model.ids import ContentId, mint_version
from headgate.model.jobspecs import Declaration, InputSpec, JobSpec, OutputSpec, Source
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, DatasetKind, PublicationKind, TransactionType, Version
from headgate.settings import load_settings, with_actor
from headgate.store.embedded import Store

_TABLE = DatasetKind.TABLE
MASTER = "master"
_WIDTH = 50
_SOURCE = Source(repository="bench", commit="c0ffee", branch=MASTER, clean=True)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Datasets in layers of fifty; each reads three of the previous layer."""

    prefix: str
    count: int

    def name(self, number: int) -> DatasetName:
        return DatasetName(namespace=("bench",), name=f"{self.prefix}{number:05d}")

    @property
    def names(self) -> list[DatasetName]:
        return [self.name(number) for number in range(self.count)]

    @property
    def targets(self) -> list[str]:
        """Return the last layer; all other datasets are upstream of it."""
        return [str(self.name(n)) for n in range(max(0, self.count - _WIDTH), self.count)]

    def specs(self, logic: str) -> list[JobSpec]:
        return [self._spec(number, logic) for number in range(self.count)]

    def _spec(self, number: int, logic: str) -> JobSpec:
        layer, place = divmod(number, _WIDTH)
        above = {(layer - 1) * _WIDTH + (place + step) % _WIDTH for step in range(3)}
        inputs = [self.name(n) for n in sorted(above)] if layer else []
        return JobSpec(
            declaration=Declaration(
                module="pipeline",
                function=f"make_{number}",
                file="pipeline.py",
                line=number + 1,
                inputs=tuple(InputSpec(name=f"in_{n.name}", dataset=n) for n in inputs),
                outputs=(OutputSpec(name="out", dataset=self.name(number)),),
            ),
            logic_hash=f"{logic}-{number}",
            bundle="0" * 64,
            source=_SOURCE,
        )


def open_store(root: Path, catalog: str | None = None) -> Store:
    """Open an empty store, on SQLite unless the URL of an empty catalog is given."""
    url = catalog or f"sqlite:///{root / 'catalog.db'}"
    database = Database(url)
    ensure_schema(database, create=True)
    database.close()
    (root / "headgate.toml").write_text(
        f'[store]\ncatalog = "{url}"\nwarehouse = "{root / "warehouse"}"\n'
    )
    return Store(with_actor(load_settings(root), ACTOR))


def publish_specs(store: Store, branch: str, specs: Iterable[JobSpec]) -> None:
    """Publish JobSpecs as `headgate jobspecs publish` does, without a repository."""
    publish_jobspecs(
        store.database,
        branch=branch,
        repository="bench",
        commit="c0ffee",
        clean=True,
        actor=ACTOR,
        specs=[
            {"outputs": [str(o.dataset) for o in spec.outputs], "jobspec": spec.to_json()}
            for spec in specs
        ],
    )


def create_datasets(store: Store, pipeline: Pipeline, *, branch: str) -> None:
    """Create every dataset, with an empty root of that name."""

    def work(connection: Connection) -> None:
        for name in pipeline.names:
            create_dataset_in(
                connection, name, kind=_TABLE, branch=branch, caller=Caller(actor=ACTOR)
            )

    store.database.write(work)


def fill_views(store: Store, pipeline: Pipeline, branch: str, *, logic: str) -> None:
    """Publish once, so that the branch shows all datasets as builds of this logic leave them.

    The versions' metadata files do not exist: planning, freshness and adoption read none.
    """
    made_from = {
        spec.outputs[0].dataset: fingerprint(
            spec,
            parameters={},
            inputs={given.name: _content(given.dataset, logic) for given in spec.inputs},
        )
        for spec in pipeline.specs(logic)
    }
    found = store.database.read(lambda c: _branches(c, pipeline, branch))
    changes = tuple(_addition(on, made_from[on.dataset], logic) for on in found)
    publish(
        store.database,
        PublishRequest(caller=Caller(actor=ACTOR), kind=PublicationKind.COMMIT, changes=changes),
    )


def _branches(connection: Connection, pipeline: Pipeline, branch: str) -> list[Branch]:
    ids = [dataset.id for dataset in find_datasets(connection, pipeline.names).values()]
    return branches_named(connection, [branch], ids)


def _addition(on: Branch, made_from: Fingerprint, logic: str) -> AddTransaction:
    return AddTransaction(
        branch=on.id,
        expected_head=on.head,
        expected_view=on.view,
        parent=on.view,
        type=TransactionType.SNAPSHOT,
        version=Version(
            id=mint_version(),
            location=f"bench/{on.dataset.name}-{logic}.json",
            content_id=_content(on.dataset, logic),
        ),
        provenance=Provenance(
            inputs_key=made_from.inputs_key,
            build_key=made_from.build_key,
            adoptable=True,
            facts={"fingerprint": made_from.to_json(), "clean": True},
        ),
    )


def _content(name: DatasetName, logic: str) -> ContentId:
    return ContentId(f"{name.name}-{logic}")
