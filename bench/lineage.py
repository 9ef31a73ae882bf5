"""Lineage page: from the catalog to the drawing, for all transforms of a chain."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR
from bench.pipelines import (
    MASTER,
    Pipeline,
    create_datasets,
    fill_views,
    open_store,
    publish_specs,
)
from headgate.model.access import Grant, Role
from headgate.server.web.lineage_page import lineage_page
from headgate.server.web.page import Visit
from headgate.store.embedded import Store


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A store whose pipeline is fresh on master, and a branch on which all of it is stale."""

    store: Store
    count: int

    def visit(self, branch: str) -> Visit:
        grant = Grant(actor=ACTOR, role=Role.READER)
        return Visit(store=self.store, grant=grant, query={"branch": branch})


def _drawn(scale: Scale, tell: Tell) -> AbstractContextManager[Mapping[str, Drawn]]:
    return drawn((100, 500), tell)


@contextmanager
def drawn(sizes: Sequence[int], tell: Tell) -> Iterator[Mapping[str, Drawn]]:
    """Fill stores of so many datasets."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        found: dict[str, Drawn] = {}
        for count in sizes:
            began = time.monotonic()
            root = Path(home) / str(count)
            root.mkdir()
            store = open_store(root)
            pipeline = Pipeline(prefix="made", count=count)
            publish_specs(store, MASTER, pipeline.specs("1"))
            publish_specs(store, "feature", pipeline.specs("2"))
            create_datasets(store, pipeline, branch=MASTER)
            fill_views(store, pipeline, MASTER, logic="1")
            tell(f"lineage: {count} datasets in {time.monotonic() - began:.1f} s")
            found[f"{count} datasets"] = Drawn(store=store, count=count)
        yield found
        for one in found.values():
            one.store.close()


LINEAGE: Bench[Drawn] = Bench(
    "lineage page",
    lambda scale, tell: drawn((100, 500), tell),
    repetitions=20,
    quick_repetitions=5,
    warm_ups=2,
)


@LINEAGE.case("all fresh, on the primary branch", target_ms=300)
def _fresh(drawn: Drawn) -> Timed:
    return lambda: lineage_page(drawn.visit(MASTER))


@LINEAGE.case("all stale, on a branch with a fallback", target_ms=300)
def _stale(drawn: Drawn) -> Timed:
    return lambda: lineage_page(drawn.visit("feature"))
