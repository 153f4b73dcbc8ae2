-- The hub: settlements and their events, the raw transactions that were signed for them, signers' nonces, idempotency
-- keys (contract 5.2, 7). Amounts are uint256 and therefore text; times are milliseconds since the epoch.

-- One row per payment that was ever claimed; its identity is unique for ever.
CREATE TABLE settlements (
    id TEXT PRIMARY KEY,
    network TEXT NOT NULL,
    asset TEXT NOT NULL,
    payer TEXT NOT NULL,
    nonce TEXT NOT NULL,
    kind TEXT NOT NULL,
    pay_to TEXT NOT NULL,
    value TEXT NOT NULL,
    state TEXT NOT NULL,
    version BIGINT NOT NULL CHECK (version > 0),
    attempt BIGINT NOT NULL CHECK (attempt > 0),
    payment TEXT NOT NULL,
    requirements TEXT NOT NULL,
    requirements_hash TEXT NOT NULL,
    confirm BIGINT NOT NULL,
    purchase_data TEXT,
    signer TEXT NOT NULL,
    transaction_hash TEXT NOT NULL DEFAULT '',
    foreign_hash TEXT,
    block_number BIGINT,
    proof TEXT,
    error TEXT,
    handed_out_ms BIGINT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    UNIQUE (network, asset, payer, nonce)
);
CREATE INDEX settlements_by_payer ON settlements (payer, created_ms);
CREATE INDEX settlements_by_recipient ON settlements (pay_to, created_ms);
CREATE INDEX settlements_unfinished ON settlements (state, updated_ms) WHERE state NOT IN ('CONFIRMED', 'FAILED');

-- Append-only; replayed in order it gives the settlement's state.
CREATE TABLE settlement_events (
    settlement_id TEXT NOT NULL REFERENCES settlements (id),
    version BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    detail TEXT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (settlement_id, version)
);

-- Every transaction that was ever signed, stored before it was sent.
CREATE TABLE raw_transactions (
    hash TEXT PRIMARY KEY,
    settlement_id TEXT NOT NULL REFERENCES settlements (id),
    attempt BIGINT NOT NULL,
    network TEXT NOT NULL,
    signer TEXT NOT NULL,
    signer_nonce BIGINT NOT NULL,
    raw BYTEA NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE INDEX raw_transactions_by_settlement ON raw_transactions (settlement_id);
CREATE INDEX raw_transactions_by_nonce ON raw_transactions (network, signer, signer_nonce);

-- The one allocator of a signer's nonces.
CREATE TABLE signer_lanes (
    network TEXT NOT NULL,
    signer TEXT NOT NULL,
    next_nonce BIGINT NOT NULL,
    PRIMARY KEY (network, signer)
);

-- A key belongs to one request for ever: to an attempt whose outcome it shows, or to the answer recorded here.
CREATE TABLE idempotency (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    settlement_id TEXT,
    attempt BIGINT,
    answer TEXT,
    created_ms BIGINT NOT NULL
);
CREATE INDEX idempotency_by_settlement ON idempotency (settlement_id, attempt);
