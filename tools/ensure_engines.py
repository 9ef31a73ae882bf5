"""Fetch what `make test-engines` runs, and print the reason where its tests will be skipped."""

from __future__ import annotations

from tests.support import catalog_tests, duckdb_engine


def main() -> None:
    """Never fail: tests skip what is missing, and CI rejects the skip."""
    for name, module in (
        (f"the catalog tests of Iceberg {catalog_tests.VERSION} (34 MB)", catalog_tests),
        (f"DuckDB {duckdb_engine.VERSION} with its Iceberg extension (50 MB)", duckdb_engine),
    ):
        if module.find() is not None:
            continue
        print(f"test: fetching {name}, once")
        try:
            module.ensure_fetched()
        except (OSError, RuntimeError) as error:
            print(f"test: they could not be fetched; their tests will be skipped\n{error}")


if __name__ == "__main__":
    main()
