"""F10: what was just built is not built again; what changed is, with what depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.builds.report import BuildState
from headgate.store import Store
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.pipelines import FileJobs, build, files_spec, publish, shown, states
from tests.support.repositories import Work, new_repository
from tests.support.stores import branches_by_name, everything, new_store

_MODULES, _EACH = 20, 10
_ALL = [f"big.m{m:02}_{n}" for m in range(_MODULES) for n in range(_EACH)]
# Modules 1, 2 and 3 import the shared function; of theirs, the last has one dependant each.
_SHARING = (1, 2, 3)
_HEAD = "from headgate.transforms import Input, Output, transform\n"
_TRANSFORM = """
@transform(out=Output("big.m{module:02}_{number}", kind="files"){given})
def t{number}(out{argument}):
    out.filesystem()
"""
_INCREMENTAL = "from headgate.transforms import incremental\n"


def _module(module: int) -> str:
    """Ten transforms, each made of the one before; one in a sharing module is all there is."""
    text = _HEAD
    if module in _SHARING:
        text += "from lib.shared import rate\n"
    for number in range(_EACH):
        before = f', x=Input("big.m{module:02}_{number - 1}")' if number else ""
        argument = ", x" if number else ""
        text += _TRANSFORM.format(
            module=module, number=number, given=before, argument=argument
        )
    return text
