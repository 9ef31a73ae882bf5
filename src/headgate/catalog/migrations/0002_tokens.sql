-- Bearer tokens for the clients of a server.
CREATE TABLE tokens (
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    actor TEXT NOT NULL,
    role TEXT NOT NULL,
    branches TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    PRIMARY KEY (id),
    CONSTRAINT tokens_by_digest UNIQUE (digest)
);
