-- Whether a gate signs what it forwards, and the secrets that it shares with its target (contract 4.7).

ALTER TABLE paygates ADD COLUMN header_auth_mode TEXT NOT NULL DEFAULT 'none';

-- Sealed, like payment addresses. A secret that was replaced is still used for a day (replaced_ms), then deleted.
CREATE TABLE paygate_secrets (
    key_id TEXT PRIMARY KEY,
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    secret BYTEA NOT NULL,
    created_ms BIGINT NOT NULL,
    replaced_ms BIGINT
);
CREATE INDEX paygate_secrets_by_gate ON paygate_secrets (gate_id);
