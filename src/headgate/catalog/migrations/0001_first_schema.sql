CREATE TABLE attempts (
    "key" TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    state TEXT NOT NULL,
    actor TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    lease_seconds BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    token_digest TEXT,
    parent_key TEXT,
    parent_epoch BIGINT,
    scope TEXT NOT NULL,
    PRIMARY KEY ("key", epoch)
);

CREATE INDEX attempts_by_parent ON attempts (parent_key) WHERE parent_key IS NOT NULL;

CREATE INDEX attempts_by_token ON attempts (token_digest) WHERE token_digest IS NOT NULL;

CREATE TABLE builds (
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    state TEXT NOT NULL,
    actor TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    attempt_key TEXT NOT NULL,
    attempt_epoch BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX builds_by_time ON builds (started_at);

CREATE TABLE condemned_objects (
    location TEXT NOT NULL,
    condemned_at BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (location)
);

CREATE TABLE datasets (
    id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    owned INTEGER NOT NULL,
    repository TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT datasets_by_name UNIQUE (namespace, name)
);

CREATE TABLE events (
    id TEXT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    kind TEXT NOT NULL,
    dataset_id TEXT,
    branch_name TEXT,
    transaction_id TEXT,
    detail TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX events_by_actor ON events (actor, at);

CREATE INDEX events_by_time ON events (at);

CREATE TABLE intent_branches (
    intent_id TEXT NOT NULL,
    branch_id TEXT NOT NULL,
    PRIMARY KEY (intent_id, branch_id)
);

CREATE INDEX intent_branches_by_branch ON intent_branches (branch_id);

CREATE TABLE intents (
    id TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    phase TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    lease_seconds BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE jobspec_outputs (
    branch TEXT NOT NULL,
    dataset TEXT NOT NULL,
    jobspec_id TEXT NOT NULL,
    PRIMARY KEY (branch, dataset)
);

CREATE INDEX jobspec_outputs_by_dataset ON jobspec_outputs (dataset);

CREATE TABLE jobspecs (
    id TEXT NOT NULL,
    branch TEXT NOT NULL,
    repository TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    actor TEXT NOT NULL,
    published_at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE log_counter (
    id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE moves (
    publication BIGINT NOT NULL,
    ordinal INTEGER NOT NULL,
    dataset_id TEXT NOT NULL,
    branch_id TEXT NOT NULL,
    branch_name TEXT NOT NULL,
    from_id TEXT,
    to_id TEXT,
    change TEXT NOT NULL,
    PRIMARY KEY (publication, ordinal)
);

CREATE INDEX moves_by_branch ON moves (branch_id, publication);

CREATE INDEX moves_by_branch_name ON moves (dataset_id, branch_name, publication);

CREATE TABLE namespaces (
    name TEXT NOT NULL,
    properties TEXT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE operations (
    id TEXT NOT NULL,
    principal TEXT NOT NULL,
    kind TEXT NOT NULL,
    branch TEXT NOT NULL,
    "key" TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    publication BIGINT,
    receipt TEXT,
    at BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT operations_by_key UNIQUE (principal, kind, branch, "key")
);

CREATE INDEX operations_by_time ON operations (at);

CREATE TABLE protected_branches (
    name TEXT NOT NULL,
    actor TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE publications (
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    kind TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    PRIMARY KEY (number)
);

CREATE INDEX publications_by_actor ON publications (actor, number);

CREATE INDEX publications_by_operation ON publications (operation_id);

CREATE INDEX publications_by_time ON publications (at);

CREATE TABLE recoveries (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    original_actor TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    publication BIGINT,
    outcomes TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX recoveries_by_operation ON recoveries (operation_id);

CREATE TABLE store (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY ("key")
);

CREATE TABLE task_keys (
    "key" TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY ("key")
);

CREATE TABLE units (
    id TEXT NOT NULL,
    branch_name TEXT NOT NULL,
    actor TEXT NOT NULL,
    state TEXT NOT NULL,
    opened_at BIGINT NOT NULL,
    lease_seconds BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE versions (
    id TEXT NOT NULL,
    dataset_id TEXT NOT NULL,
    location TEXT NOT NULL,
    content_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    condemned_at BIGINT,
    PRIMARY KEY (id)
);

CREATE INDEX versions_by_dataset ON versions (dataset_id);

CREATE INDEX versions_by_location ON versions (location);

CREATE TABLE working_objects (
    transaction_id TEXT NOT NULL,
    location TEXT NOT NULL,
    PRIMARY KEY (transaction_id, location)
);

CREATE TABLE branches (
    id TEXT NOT NULL,
    dataset_id TEXT NOT NULL,
    name TEXT NOT NULL,
    parent_id TEXT,
    head_id TEXT,
    view_id TEXT,
    remembered_chain TEXT,
    build_id TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT branches_by_name UNIQUE (dataset_id, name),
    FOREIGN KEY(dataset_id) REFERENCES datasets (id)
);

CREATE INDEX branches_by_head ON branches (head_id);

CREATE INDEX branches_by_parent ON branches (parent_id);

CREATE INDEX branches_by_view ON branches (view_id);

CREATE TABLE jobs (
    build_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (build_id, ordinal),
    FOREIGN KEY(build_id) REFERENCES builds (id)
);

CREATE TABLE tags (
    dataset_id TEXT NOT NULL,
    name TEXT NOT NULL,
    transaction_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (dataset_id, name),
    FOREIGN KEY(dataset_id) REFERENCES datasets (id)
);

CREATE INDEX tags_by_transaction ON tags (transaction_id);

CREATE TABLE transactions (
    id TEXT NOT NULL,
    dataset_id TEXT NOT NULL,
    branch_id TEXT NOT NULL,
    branch_name TEXT NOT NULL,
    parent_id TEXT,
    depth BIGINT NOT NULL,
    jump_id TEXT,
    type TEXT NOT NULL,
    state TEXT NOT NULL,
    version_id TEXT,
    actor TEXT NOT NULL,
    opened_at BIGINT NOT NULL,
    closed_at BIGINT,
    lease_seconds BIGINT,
    lease_until BIGINT,
    attempt_key TEXT,
    attempt_epoch BIGINT,
    unit_id TEXT,
    publication BIGINT,
    inputs_key TEXT,
    build_key TEXT,
    adoptable INTEGER NOT NULL,
    provenance TEXT NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(dataset_id) REFERENCES datasets (id)
);

CREATE INDEX transactions_by_attempt ON transactions (attempt_key) WHERE state = 'OPEN';

CREATE INDEX transactions_by_branch ON transactions (branch_id, opened_at);

CREATE INDEX transactions_by_build_key ON transactions (build_key) WHERE adoptable = 1;

CREATE INDEX transactions_by_unit ON transactions (unit_id) WHERE unit_id IS NOT NULL;

CREATE INDEX transactions_by_version ON transactions (version_id);

CREATE INDEX transactions_open ON transactions (lease_until) WHERE state = 'OPEN';

INSERT INTO log_counter (id, number, last_at) VALUES (1, 0, 0);
