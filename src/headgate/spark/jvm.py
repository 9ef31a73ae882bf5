"""The one JVM of a build: started by the build's process, used by all its job processes."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from headgate.spark.gateway import (
    GatewayAddress,
    JvmProcess,
    Launch,
    connect,
    launch,
    startup_failed,
)


class SharedJvm:
    """A JVM with a SparkContext that other processes attach to; it dies with this process."""

    def __init__(self, process: JvmProcess, gateway: Any, context: Any) -> None:
        self._process = process
        self._gateway = gateway
        self._context = context

    @classmethod
    def start(cls, request: Launch) -> Self:
        """Starts the JVM and its SparkContext; this process needs no PySpark for it, only py4j."""
        process = launch(request)
        try:
            gateway = connect(process.address)
            session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
            return cls(process, gateway, session.sparkContext())
        except BaseException as error:
            process.end()
            if isinstance(error, Exception):
                raise startup_failed("its SparkContext", request.log_path) from error
            raise

    @property
    def address(self) -> GatewayAddress:
        return self._process.address

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends every Spark job under these tags for good: a tag is never used again."""
        try:
            for tag in tags:
                self._context.cancelJobGroupAndFutureJobs(tag)
                self._context.cancelJobsWithTag(tag)
        except Exception:
            # With the JVM, all that ran in it has ended.
            if self.alive:
                raise

    def active_jobs(self) -> int:
        """How many Spark jobs are running now, of whatever tag."""
        return len(self._context.statusTracker().getActiveJobIds())

    def stop(self) -> None:
        """Ends the JVM and all that runs in it."""
        self._gateway.shutdown()
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
