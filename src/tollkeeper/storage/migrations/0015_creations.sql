-- What a create with an Idempotency-Key was answered, for a day. The answer is sealed: it holds a payment address, and
-- may hold a secret or token that is shown once.

CREATE TABLE creations (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    answer BYTEA NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX creations_by_age ON creations (created_ms);
