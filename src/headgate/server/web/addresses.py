"""Where each page is: the only place that writes a path."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from headgate.model.names import DatasetName

DATASETS = "/"
BRANCHES = "/branches"
LINEAGE = "/lineage"
BUILDS = "/builds"
LOG = "/log"
REVIEW = "/review"
SIGN_IN = "/login"
SIGN_OUT = "/logout"
ASSETS = "/assets"


def with_query(path: str, /, **query: str | int | None) -> str:
    """A path with those of the parameters that say something."""
    given = {key.rstrip("_"): value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def dataset_at(name: DatasetName | str, /, **query: str | int | None) -> str:
    return with_query(f"/datasets/{quote(str(name), safe='')}", **query)


def build_at(id: str, /, **query: str | int | None) -> str:
    return with_query(f"/builds/{quote(id, safe='')}", **query)


def branch_at(name: str) -> str:
    return with_query(BRANCHES, branch=name)


def local_path(text: str | None) -> str:
    """A path on this server that somebody was on the way to; anything else is the first page."""
    if text is None or not text.startswith("/") or text.startswith("//") or "\\" in text:
        return DATASETS
    return text if text.isprintable() else DATASETS
