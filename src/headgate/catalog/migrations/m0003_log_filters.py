"""Indexes by which the log is read from its newest end, whatever it is filtered by."""

from __future__ import annotations

STATEMENTS = (
    "CREATE INDEX publications_by_kind ON publications (kind, number)",
    "CREATE INDEX moves_by_dataset ON moves (dataset_id, publication)",
    "CREATE INDEX moves_by_name ON moves (branch_name, publication)",
)
