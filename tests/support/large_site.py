"""Five hundred datasets behind a real server, for the lineage page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from headgate.connection import open as open_store
from headgate.model.jobspecs import JobSpec
from tests.support.pipelines import build, files_spec, publish
from tests.support.repositories import new_repository
from tests.support.shell import headgate_json
from tests.support.site import Site, serving
from tests.support.stores import files_branch, put

# Number of datasets in each layer; each layer reads the layers before it.
_LAYERS = {"raw": 90, "clean": 140, "joined": 150, "mart": 80, "report": 40}
_WORDS = ("orders", "sessions", "invoices", "campaigns_and_their_daily_results", "stock")
_TEAMS = ("sales", "web", "finance", "logistics")
_BUILT = 40
DATASETS = sum(_LAYERS.values())


def layered_pipeline() -> tuple[list[str], list[JobSpec]]:
    """Return sources and the transforms that derive all other datasets; equal at every call."""
    chance = Random(7)
    layers = {
        layer: [
            f"{chance.choice(_TEAMS)}_{layer}.{chance.choice(_WORDS)}_{n:03d}" for n in range(many)
        ]
        for layer, many in _LAYERS.items()
    }
    names = list(layers.values())
    # Each dataset of a layer is read at least once where the next layer is large enough.
    specs = [
        files_spec(name, *_some_of(above, at, chance))
        for above, below in itertools.pairwise(names)
        for at, name in enumerate(below)
    ]
    return names[0], specs


def _some_of(above: list[str], at: int, chance: Random) -> dict[str, None]:
    more = chance.sample(above, chance.choice((0, 1, 2)))
    return dict.fromkeys([above[at % len(above)], *more])


def make_large_store(root: Path) -> None:
    """Create sources with content, declare all datasets on master and build some, without Spark."""
    sources, specs = layered_pipeline()
    with open_store(root) as store:
        for name in sources:
            put(files_branch(store, name), made=name)
        publish(store, "master", *specs)
        build(store, [str(spec.outputs[0].dataset) for spec in specs[:_BUILT]])


@contextmanager
def serving_large_site(root: Path) -> Iterator[Site]:
    work = new_repository(root)
    headgate_json("init", cwd=root)
    make_large_store(root)
    with serving(root) as (url, token, _):
        assert token is not None
        yield Site(url=url, token=token, root=root, work=work)
