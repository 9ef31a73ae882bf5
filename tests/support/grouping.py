"""Tests of one `xdist_group` on one worker: with pytest 9.2, xdist 3.8 spreads them unseen.

It tells its scheduler the group by the end of a test's id, and writes that where this pytest no
longer looks (pytest-xdist's issue 1386). An xdist that does it right finds nothing to do here.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Which xdist sets in its workers.
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")
