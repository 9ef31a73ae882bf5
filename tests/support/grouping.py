"""Keeps the tests of one `xdist_group` on one worker: xdist 3.8 spreads them with pytest 9.2.

xdist passes the group to its scheduler at the end of a test's id, in an attribute that this pytest
no longer reads (pytest-xdist issue 1386). With a corrected xdist this module does nothing.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Set by xdist in its workers.
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")
