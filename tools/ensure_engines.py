"""Fetch what `make test-engines` runs, and print the reason where its tests will be skipped."""

from __future__ import annotations

from tests.support import catalog_tests, trino_engine
from tests.support.engine_packages import DUCKDB, FRAMES


def main() -> None:
    """Never fail: tests skip what is missing, and CI rejects the skip."""
    for name, wanted in (
        (f"the catalog tests of Iceberg {catalog_tests.VERSION} (34 MB)", catalog_tests),
        (DUCKDB.title, DUCKDB),
        (FRAMES.title, FRAMES),
        (f"Trino {trino_engine.VERSION} with its Java (870 MB)", trino_engine),
    ):
        if wanted.find() is not None:
            continue
        print(f"test: fetching {name}, once")
        try:
            wanted.ensure_fetched()
        except (OSError, RuntimeError) as error:
            print(f"test: they could not be fetched; their tests will be skipped\n{error}")


if __name__ == "__main__":
    main()
