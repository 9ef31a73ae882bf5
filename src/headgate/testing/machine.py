"""One Spark for all tests of a process: starting it takes longer than most of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headgate.settings import FILE_NAME, BuildSettings, Settings, SparkSettings, load_settings
from headgate.spark.jvm import SharedJvm
from headgate.spark.workplace import launch_request

if TYPE_CHECKING:
    from headgate.spark.workplace import SparkSession

PRIMARY = "master"
# Small data needs few tasks, and two cores are enough to find out what is not safe in parallel.
_CONF = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}
_MASTER = "local[2]"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class SparkOfTests:
    """A JVM that builds share, and that this process joins when somebody asks for a session.

    It is started when it is first needed: a test of files alone never waits for it.
    """

    def __init__(self, conf: Mapping[str, str] = _NOTHING) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="headgate-testing-"))
        self._conf = conf
        self._jvm: SharedJvm | None = None

    @property
    def is_started(self) -> bool:
        return self._jvm is not None

    def jvm(self) -> SharedJvm:
        """The one JVM, from now on running."""
        if self._jvm is None:
            settings = settings_of_tests(self._directory, self._conf)
            self._jvm = SharedJvm.start(launch_request(settings, self._directory / "spark.log"))
        return self._jvm

    def session(self) -> SparkSession:
        """A session of its own on the shared Spark, without a catalog of Headgate's."""
        from headgate.spark.attach import join  # noqa: PLC0415  (slow: PySpark)

        return join(self.jvm().address)

    def stop(self) -> None:
        """Ends the JVM if there is one, and forgets that this process had joined it."""
        if self._jvm is not None:
            from headgate.spark.attach import leave  # noqa: PLC0415  (slow: PySpark)

            leave()
            self._jvm.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def settings_of_tests(root: Path, conf: Mapping[str, str] = _NOTHING) -> Settings:
    """An embedded store in a directory, whatever store the shell points at; Java as configured."""
    file = root / FILE_NAME
    file.touch()
    machine = load_settings(root)
    # Without bytecode every job's process would compile PySpark and pandas again.
    environ = {k: v for k, v in machine.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return replace(
        machine,
        root=root,
        catalog=f"sqlite:///{root / 'catalog.db'}",
        warehouse=str(root / "warehouse"),
        spark=SparkSettings(master=_MASTER, conf={**_CONF, **conf}),
        builds=BuildSettings(branch=PRIMARY),
        lineage=None,
        server_url=None,
        token=None,
        environ=environ,
    )
