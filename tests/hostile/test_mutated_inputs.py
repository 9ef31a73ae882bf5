"""Damaged and forged inputs of every format are accepted or refused, and never break a process."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.mutated_inputs import FORMATS, Format, input_of, mutate, read_all
from tests.support.processes import run

_SEED = 1
_IN_CI = 2000
# Without CI, of a round.
_PER_ROUND = 10
_ENOUGH = 200


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_input_is_accepted_or_refused(name: str, rounds: int, tmp_path: Path) -> None:
    count = _IN_CI if os.environ.get("CI") == "true" else rounds * _PER_ROUND
    report, directory = tmp_path / "report.jsonl", tmp_path / "store"
    directory.mkdir()
    code = run(read_all, name, _SEED, count, directory, report)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    faults = [line["fault"] for line in lines if "fault" in line]
    if code != 0 or faults:
        number = max((line["number"] for line in lines if "number" in line), default=0)
        (tmp_path / "input").write_bytes(input_of(name, _SEED, number))
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        shown = "\n".join(faults) or f"the process ended by {how}"
        pytest.fail(f"{name}, seed {_SEED}, input {number}, saved as {tmp_path}/input:\n{shown}")
    # Some mutations change nothing that counts: where all are refused, the reader is broken.
    assert lines[-1]["accepted"] > 0 or count < _ENOUGH


def test_mutated_inputs_of_a_seed_are_the_same_every_time() -> None:
    assert [input_of("csv", 1, n) for n in range(20)] == [input_of("csv", 1, n) for n in range(20)]
    assert input_of("csv", 1, 0) != input_of("csv", 2, 0)


def test_mutations_reach_lengths_ends_and_all_bytes() -> None:
    sample = bytes(range(64))
    format = Format(samples=lambda: [sample], reader=None)  # type: ignore[arg-type]
    found = [mutate(random.Random(n), [sample], format) for n in range(2000)]
    assert min(map(len, found)) < 8 and max(map(len, found)) > 128
    same = [one for one in found if len(one) == len(sample)]
    changed = {at for one in same for at in range(len(sample)) if one[at] != sample[at]}
    assert changed == set(range(64))
    assert any(b"\xff\xff\xff\xff" in one for one in found)
