"""Jobs done on this store's own Spark: the catalog's half and the engine's half in one process."""

from __future__ import annotations

from headgate.builds.attempting import JobResult, JobWork, Progress
from headgate.builds.doing import Doing, Means
from headgate.builds.ordering import make_order, settle_outputs
from headgate.builds.parts import Parts


class SparkJobs:
    """Jobs are done on Spark: one engine for all, and a process for each, made ready beforehand."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._means = Means(
            objects=parts.objects,
            trees=parts.contents.trees,
            bundles=parts.settings.cache / "bundles",
            workplace=parts.workplace,
        )

    def expect(self, count: int) -> None:
        self._means.expect(count)

    def start(self, work: JobWork) -> SparkAttempt:
        return SparkAttempt(self._parts, self._means, work)


class SparkAttempt:
    """Orders, does and stages one attempt."""

    def __init__(self, parts: Parts, means: Means, work: JobWork) -> None:
        self._parts = parts
        self._work = work
        self._doing = Doing(means, work.directory)

    def run(self, progress: Progress) -> JobResult:
        result = self._doing.run(make_order(self._parts, self._work), progress)
        if result.succeeded and not result.aborted:
            settle_outputs(self._parts, self._work, result)
        return result

    def stop(self, reason: str) -> None:
        self._doing.stop(reason)
