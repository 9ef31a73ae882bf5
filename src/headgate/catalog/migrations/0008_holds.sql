-- Results that a reset removed from a branch, by inputs key: builds there hold them back.
CREATE TABLE holds (
    branch_id TEXT NOT NULL,
    inputs_key TEXT NOT NULL,
    publication BIGINT NOT NULL,
    PRIMARY KEY (branch_id, inputs_key)
);
