"""Commands on rows without pandas, which Arrow loads with the first array that it makes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# They run no code but ours, and none of ours makes a pandas object.
_WITHOUT_PANDAS = ("load", "merge", "mutate", "optimize", "schema")


def spare_pandas(words: Sequence[str]) -> None:
    """Makes it that pandas is not installed, for the process of a command on rows.

    Loading it takes 0.4 s, a quarter of a small mutation. Spark's own client may need it.
    """
    by_spark = any(word in ("spark", "--engine=spark") for word in words)
    if words and words[0] in _WITHOUT_PANDAS and not by_spark and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """A finder of modules that denies pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)
