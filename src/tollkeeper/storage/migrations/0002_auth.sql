-- Users, login messages waiting for their signature, logins, refresh tokens.
CREATE TABLE users (
    id BIGINT PRIMARY KEY,
    wallet TEXT NOT NULL UNIQUE,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);

-- `number` counts the issued messages, so that the oldest beyond the cap are found without counting.
CREATE TABLE login_messages (
    digest BYTEA PRIMARY KEY,
    number BIGINT NOT NULL UNIQUE,
    wallet TEXT NOT NULL,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX login_messages_expiry ON login_messages (expires_ms);

-- One login, from which every later token of the family descends.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    ended_ms BIGINT
);
CREATE INDEX sessions_expiry ON sessions (expires_ms);
CREATE INDEX sessions_user ON sessions (user_id);

-- A used token stays until it expires: its return is the sign of a theft.
CREATE TABLE refresh_tokens (
    digest BYTEA PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    expires_ms BIGINT NOT NULL,
    used_ms BIGINT
);
CREATE INDEX refresh_tokens_expiry ON refresh_tokens (expires_ms);
CREATE INDEX refresh_tokens_session ON refresh_tokens (session_id);
