"""A job process joins the engine of its build, whichever kind that is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.spark import attach as classic
from headgate.spark import connect
from headgate.spark.engines import Address, Attached, ConnectAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def join(address: Address) -> SparkSession:
    """A new session of the engine, for a job that is not known yet."""
    if isinstance(address, ConnectAddress):
        return connect.join_remote(address)
    return classic.join(address)


def attach(
    address: Address, session: SparkSession, *, conf: Mapping[str, str], tag: str, bundle: Path
) -> Attached:
    """Gives a session that nobody has used yet to one job: its settings, its tag, its code."""
    give = connect.attach_remote if isinstance(address, ConnectAddress) else classic.attach
    return give(session, conf=conf, tag=tag, bundle=bundle)
