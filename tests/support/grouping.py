"""Keeps the tests of one `xdist_group` on one worker: xdist 3.8 spreads them with pytest 9.2.

Those that share a Spark in their process come first, so that it starts once for all of them.

xdist passes the group to its scheduler at the end of a test's id, in an attribute that this pytest
no longer reads (pytest-xdist issue 1386). With a corrected xdist this module only orders the tests.
"""

from __future__ import annotations

import pytest

# These tests leave the Spark of the process running for one another (tests/conftest.py).
_SPARK_FIXTURES = ("local_spark", "spark_place")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Set by xdist in its workers.
    if not getattr(config.option, "loadgroup", False):
        return
    items.sort(key=_order)
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")


def _order(item: pytest.Item) -> int:
    """Order by the Spark that a test uses: the local one, then each place in turn, then none."""
    used = [name in getattr(item, "fixturenames", ()) for name in _SPARK_FIXTURES]
    return used.index(True) if any(used) else len(used)
