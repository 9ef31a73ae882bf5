"""The datasets and branches that the clients of a history use."""

from __future__ import annotations

FILES, LEFT_TREE, RIGHT_TREE, TREE = "h.files", "h.one", "h.two", "h.tree"
LEFT, RIGHT, EVENTS = "h.left", "h.right", "h.events"
MASTER, DEV = "master", "dev"
ROWS = ("x0", "x1", "x2")
PATHS = ("p0", "p1", "p2")
# Paths of the merged tree: those of one side, and one of both.
DEV_PATHS, MASTER_PATHS = ("d0", "d1", "both"), ("m0", "m1", "both")

TREES = (FILES, LEFT_TREE, RIGHT_TREE, TREE)
TABLES = (LEFT, RIGHT)
SCHEMA = "\n".join(
    f'[dataset."{name}"]\nkey = ["id"]\ncolumns = {{ id = "string", n = "long", mark = "string" }}'
    for name in TABLES
)


def place(dataset: str, branch: str = MASTER) -> str:
    return f"{dataset}@{branch}"


PLACES = (*map(place, (*TREES, *TABLES, EVENTS)), place(TREE, DEV))
# Places whose keys of one name are changed by one publication.
TOGETHER = {
    place(LEFT): "rows",
    place(RIGHT): "rows",
    place(LEFT_TREE): "unit",
    place(RIGHT_TREE): "unit",
}
