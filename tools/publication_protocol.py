"""Run the publication protocol on a real store; exit with 1 at the first case that fails.

    python -m tools.publication_protocol --store files
    python -m tools.publication_protocol --store lakefs

`files` creates a store in a temporary directory, or uses the one of HEADGATE_STORE_CATALOG and
HEADGATE_STORE_WAREHOUSE. `lakefs` uses the server of HEADGATE_LAKEFS_ENDPOINT, with
HEADGATE_LAKEFS_ACCESS_KEY_ID and HEADGATE_LAKEFS_SECRET_ACCESS_KEY, and creates a repository in
HEADGATE_LAKEFS_STORAGE (default: local://headgate-protocol).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.errors import HeadgateError
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.publication_cases import CASES, FilesHarness, StoreHarness, try_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["files", "lakefs"], required=True)
    chosen = parser.parse_args().store
    with _opened_store() as store, _harness(store, chosen) as harness:
        for name in CASES:
            try:
                try_case(harness, name)
            except (AssertionError, HeadgateError) as error:
                print(f"FAILED {name}: {error or type(error).__name__}")
                return 1
            print(f"ok     {name}")
    print(f"the publication protocol holds on {chosen}")
    return 0


@contextmanager
def _harness(store: Store, chosen: str) -> Iterator[StoreHarness]:
    if chosen == "files":
        yield FilesHarness(store)
        return
    from tests.support.lakefs_harness import (  # noqa: PLC0415  (optional: the SDK)
        lakefs_harness,
    )

    with lakefs_harness(store, os.environ.get("HEADGATE_LAKEFS_STORAGE")) as harness:
        yield harness


@contextmanager
def _opened_store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="headgate-protocol-") as scratch:
        environ = dict(os.environ)
        if "HEADGATE_STORE_CATALOG" not in environ:
            environ["HEADGATE_STORE_CATALOG"] = str(Path(scratch) / "catalog.db")
            environ["HEADGATE_STORE_WAREHOUSE"] = str(Path(scratch) / "warehouse")
        settings = load_settings(Path(scratch), environ)
        database = Database(settings.catalog)
        ensure_schema(database, create=True)
        database.close()
        with Store(settings) as store:
            yield store


if __name__ == "__main__":
    raise SystemExit(main())
