"""Where the installed PySpark is, without importing it: that alone takes a second or two."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headgate.errors import MissingExtra


def spark_home() -> Path:
    """The directory of the installed PySpark, which holds a whole Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra(feature="Spark", extra="spark")
    return Path(spec.origin).parent
