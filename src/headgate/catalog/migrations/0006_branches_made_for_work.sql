-- Branches are made for units too: the index finds those that an ended unit left unused.
ALTER TABLE branches RENAME COLUMN build_id TO made_for;

CREATE INDEX branches_unused ON branches (made_for)
    WHERE head_id IS NULL AND made_for IS NOT NULL;
