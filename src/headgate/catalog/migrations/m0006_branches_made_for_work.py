"""Branches are made for units too: what an ended one left unused is found quickly."""

from __future__ import annotations

STATEMENTS = (
    "ALTER TABLE branches RENAME COLUMN build_id TO made_for",
    """
CREATE INDEX branches_unused ON branches (made_for)
    WHERE head_id IS NULL AND made_for IS NOT NULL
    """,
)
