"""Where the manifests of tables are read: here, or by Spark where there are very many."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.model.ports import ObjectStore
from headgate.tables.naming import ManifestRef
from headgate.upkeep.table_files import MarkManifests, mark_here

if TYPE_CHECKING:
    from headgate.spark.workplace import SparkSession

# One process reads about 8 MiB of manifests in a second (some 45,000 files), and Spark takes ten
# seconds to start: from a minute's work on, it pays.
SPARK_FROM_BYTES = 512 * 1024 * 1024


class Marking(enum.StrEnum):
    """Who reads the manifests."""

    AUTO = "auto"
    PYTHON = "python"
    SPARK = "spark"


def choose_marking(
    marking: Marking,
    objects: ObjectStore,
    options: Mapping[str, str],
    session: Callable[[], SparkSession],
) -> MarkManifests:
    """A way to read manifests; Spark is started only once it is known to be wanted."""

    def mark(manifests: Sequence[ManifestRef]) -> Iterable[str]:
        size = sum(manifest.length for manifest in manifests)
        is_large = marking is Marking.AUTO and size >= SPARK_FROM_BYTES
        if not manifests or not (marking is Marking.SPARK or is_large):
            return mark_here(objects, manifests)
        from headgate.spark.mark import mark_on_spark  # noqa: PLC0415 - Arrow is an optional extra

        # Of a whole environment only what reaches the storage goes to the workers.
        credentials = {name: value for name, value in options.items() if name.startswith("AWS_")}
        return mark_on_spark(session(), objects.url, credentials, manifests)

    return mark
