"""The page on errors is what the errors say of themselves."""

from __future__ import annotations

import pytest

from headgate import errors
from tools.make_errors import TARGET, make_errors


def test_page_on_errors_is_up_to_date() -> None:
    assert TARGET.read_text() == make_errors(), "run `make docs`"


@pytest.mark.parametrize("name", errors.__all__)
def test_error_says_in_one_sentence_what_it_means(name: str) -> None:
    said = vars(getattr(errors, name)).get("__doc__")
    assert said and said.split("\n")[0].endswith(".")
