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
from headgate.spark.late_jobs import LateJobs


class SharedJvm:
    """A JVM with a SparkContext that other processes attach to; it dies with this process."""

    def __init__(
        self, process: JvmProcess | None, address: GatewayAddress, gateway: Any, context: Any
    ) -> None:
        # None: somebody else's, who started it and will end it.
        self._process = process
        self.address = address
        self._gateway = gateway
        self._context = context
        self._late = LateJobs(self._cancel)

    @classmethod
    def start(cls, request: Launch) -> Self:
        """Starts the JVM and its SparkContext; this process needs no PySpark for it, only py4j."""
        process = launch(request)
        try:
            gateway = connect(process.address)
            session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
            return cls(process, process.address, gateway, session.sparkContext())
        except BaseException as error:
            process.end()
            if isinstance(error, Exception):
                raise startup_failed("its SparkContext", request.log_path) from error
            raise

    @classmethod
    def at(cls, address: GatewayAddress) -> Self:
        """A JVM that another process started; to stop it here is only to let go of it."""
        gateway = connect(address)
        return cls(None, address, gateway, gateway.jvm.org.apache.spark.SparkContext.getOrCreate())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is None or self._process.alive

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends every Spark job under these tags for good: a tag is never used again."""
        ended = tuple(tags)
        for tag in ended:
            self._cancel(tag)
        self._late.watch(ended)

    def _cancel(self, tag: str) -> None:
        try:
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
        self._late.close()
        if self._process is None:
            self._gateway.close(keep_callback_server=True)
            return
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
