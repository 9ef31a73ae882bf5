-- Tickets: the write queue of a branch, for writers that keep losing races.
CREATE TABLE tickets (
    id TEXT NOT NULL,
    branch_id TEXT NOT NULL,
    taken_at BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (id, branch_id)
);

CREATE INDEX tickets_by_branch ON tickets (branch_id, taken_at);
