-- A login message is known by the HMAC in its nonce and needs no row until it is used.
DROP TABLE login_messages;
DELETE FROM sequences WHERE name = 'login_messages';
CREATE TABLE used_login_nonces (
    nonce TEXT PRIMARY KEY,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX used_login_nonces_expiry ON used_login_nonces (expires_ms);
