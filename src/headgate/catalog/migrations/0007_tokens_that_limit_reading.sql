-- Patterns of the branches that a token may read, and of the datasets that it may read and write.
ALTER TABLE tokens ADD COLUMN reads TEXT NOT NULL DEFAULT '["*"]';

ALTER TABLE tokens ADD COLUMN datasets TEXT NOT NULL DEFAULT '["*"]';
