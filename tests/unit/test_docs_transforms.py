"""Guide to transforms: every piece of Python in it defines a transform."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from headgate.transforms.discovery import transforms_of

GUIDE = Path(__file__).parents[2] / "docs" / "transforms.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)


@pytest.mark.parametrize("source", BLOCKS, ids=range(len(BLOCKS)))
def test_code_of_the_guide_defines_transforms(source: str) -> None:
    module = ModuleType("guide")
    exec(compile(source, str(GUIDE), "exec"), vars(module))
    assert transforms_of(module)


def test_guide_has_code_at_all() -> None:
    assert len(BLOCKS) >= 6
