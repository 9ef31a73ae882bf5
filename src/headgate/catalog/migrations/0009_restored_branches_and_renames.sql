-- A deleted branch can be restored while its history is retained. `declared_parent_id` is the parent
-- that a user named; `parent_id` is the first of its ancestors that still exists.
ALTER TABLE branches ADD COLUMN declared_parent_id TEXT;

UPDATE branches SET declared_parent_id = parent_id;

CREATE TABLE deleted_branches (
    id TEXT NOT NULL PRIMARY KEY,
    dataset_id TEXT NOT NULL,
    name TEXT NOT NULL,
    declared_parent_id TEXT,
    view_id TEXT,
    remembered_chain TEXT,
    publication BIGINT NOT NULL
);

CREATE INDEX deleted_branches_by_name ON deleted_branches (name, dataset_id);

-- The transaction of the earlier name that the first one under a new name continues.
ALTER TABLE transactions ADD COLUMN renamed_from TEXT;

CREATE INDEX transactions_renamed ON transactions (dataset_id) WHERE renamed_from IS NOT NULL;
