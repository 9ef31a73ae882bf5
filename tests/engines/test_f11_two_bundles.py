"""F11: two JobSpecs of one build import the same module from two branches; each gets its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.spark.engines import SharedJvm
from tests.support.projects import new_project
from tests.support.two_bundles import assert_each_used_its_own, publish_two_bundles

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def test_f11_jobs_of_two_branches_each_use_their_own_module(
    made_catalog_url: str, tmp_path: Path, jvm: SharedJvm
) -> None:
    project = new_project(made_catalog_url, tmp_path, jvm)
    with project.store:
        publish_two_bundles(project)
        assert_each_used_its_own(project)
