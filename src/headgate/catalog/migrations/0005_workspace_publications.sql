-- Ledger of the publications of workspaces that other systems store.
CREATE TABLE workspace_publications (
    repository TEXT NOT NULL,
    ref TEXT NOT NULL,
    branch TEXT NOT NULL,
    attempt_key TEXT NOT NULL,
    attempt_epoch BIGINT NOT NULL,
    execution TEXT NOT NULL,
    action TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (repository, ref)
);
