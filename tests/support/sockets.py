"""Filters warnings about sockets that PySpark and Py4J leave to the garbage collector."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # PySpark leaves the socket of a collected result to the garbage collector, and Py4J the
    # connection of a thread.
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and group.args == ("spark",):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
