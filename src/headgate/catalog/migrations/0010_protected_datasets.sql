-- Patterns of the datasets on which a branch name is protected.
ALTER TABLE protected_branches ADD COLUMN datasets TEXT NOT NULL DEFAULT '["*"]';

-- Whether a name is a branch is looked up by every entrance.
CREATE INDEX branches_by_plain_name ON branches (name);
