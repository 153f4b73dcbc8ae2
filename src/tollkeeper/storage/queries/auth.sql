-- The sweeps take a handful each, so that no request pays for what a flood or a long absence left.
-- name: sweep_nonces
DELETE FROM used_login_nonces WHERE nonce IN (
    SELECT nonce FROM used_login_nonces WHERE expires_ms <= :now_ms ORDER BY expires_ms LIMIT 64
);

-- Login: of any number of callers with one message, the one whose insert returns the row has logged in.
-- name: use_nonce
INSERT INTO used_login_nonces (nonce, expires_ms) VALUES (:nonce, :expires_ms)
ON CONFLICT (nonce) DO NOTHING
RETURNING nonce;

-- name: touch_user
UPDATE users SET updated_ms = :now_ms WHERE wallet = :wallet
RETURNING id, wallet, created_ms, updated_ms;

-- name: add_user
INSERT INTO users (id, wallet, created_ms, updated_ms) VALUES (:id, :wallet, :now_ms, :now_ms)
RETURNING id, wallet, created_ms, updated_ms;

-- name: read_user
SELECT id, wallet, created_ms, updated_ms FROM users WHERE id = :id;

-- name: read_user_of
SELECT id, wallet, created_ms, updated_ms FROM users WHERE wallet = :wallet;

-- name: add_session
INSERT INTO sessions (id, user_id, created_ms, expires_ms) VALUES (:id, :user_id, :now_ms, :expires_ms);

-- name: read_session
SELECT sessions.id, sessions.user_id, users.wallet
FROM sessions JOIN users ON users.id = sessions.user_id
WHERE sessions.id = :id AND sessions.ended_ms IS NULL;

-- name: extend_session
UPDATE sessions SET expires_ms = :expires_ms WHERE id = :id AND ended_ms IS NULL
RETURNING id;

-- name: end_session
UPDATE sessions SET ended_ms = :now_ms WHERE id = :id AND ended_ms IS NULL
RETURNING id;

-- name: sessions_of_user
SELECT id, created_ms, expires_ms FROM sessions
WHERE user_id = :user_id AND ended_ms IS NULL AND expires_ms > :now_ms ORDER BY created_ms DESC LIMIT 100;

-- name: add_refresh_token
INSERT INTO refresh_tokens (digest, session_id, expires_ms) VALUES (:digest, :session_id, :expires_ms);

-- Refresh: of any number of callers with one token, the one whose update returns the row goes on.
-- name: use_refresh_token
UPDATE refresh_tokens SET used_ms = :now_ms
WHERE digest = :digest AND used_ms IS NULL AND expires_ms > :now_ms
RETURNING session_id;

-- name: read_used_refresh_token
SELECT session_id FROM refresh_tokens WHERE digest = :digest AND used_ms IS NOT NULL;

-- The login goes on by the successor that the used token was given just now, while nobody has used that.
-- name: read_session_again
SELECT sessions.id, sessions.user_id, users.wallet
FROM refresh_tokens used
JOIN refresh_tokens next ON next.digest = :successor AND next.session_id = used.session_id
JOIN sessions ON sessions.id = used.session_id
JOIN users ON users.id = sessions.user_id
WHERE used.digest = :digest AND used.used_ms > :since_ms AND next.used_ms IS NULL AND sessions.ended_ms IS NULL;

-- name: sweep_refresh_tokens
DELETE FROM refresh_tokens WHERE digest IN (
    SELECT digest FROM refresh_tokens WHERE expires_ms <= :now_ms ORDER BY expires_ms LIMIT 64
);

-- An ended or expired login is of no use once no access token of it can be in force either.
-- name: sweep_sessions
DELETE FROM sessions WHERE id IN (
    SELECT id FROM sessions WHERE expires_ms <= :now_ms ORDER BY expires_ms LIMIT 16
);
