-- The gateway: PayGates and their versions, purchases, the credit ledger and its calls (contract 3, 4.3).
-- Payment addresses and settle requests are sealed (AES-256-GCM); times are milliseconds since the epoch.

CREATE TABLE paygates (
    id BIGINT PRIMARY KEY,
    slug TEXT NOT NULL UNIQUE,
    version BIGINT NOT NULL CHECK (version > 0),
    owner_wallet TEXT,
    management_hash BYTEA,
    target_url TEXT NOT NULL,
    price_micro BIGINT NOT NULL CHECK (price_micro > 0),
    credits BIGINT NOT NULL CHECK (credits > 0),
    methods TEXT NOT NULL,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    assume_valid BIGINT NOT NULL,
    require_auth BIGINT NOT NULL,
    network TEXT NOT NULL,
    payment_address BYTEA NOT NULL,
    mime_type TEXT NOT NULL,
    is_enabled BIGINT NOT NULL,
    deleted_ms BIGINT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
CREATE INDEX paygates_by_owner ON paygates (owner_wallet, id);

-- One row per version that was ever in force: a purchase's terms must equal one of them.
CREATE TABLE paygate_versions (
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    version BIGINT NOT NULL,
    price_micro BIGINT NOT NULL,
    credits BIGINT NOT NULL,
    network TEXT NOT NULL,
    pay_to BYTEA NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (gate_id, version)
);

CREATE TABLE paygate_counters (
    gate_id BIGINT PRIMARY KEY REFERENCES paygates (id),
    challenges BIGINT NOT NULL,
    purchases BIGINT NOT NULL,
    calls BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    revenue_micro BIGINT NOT NULL
);

-- One row per payment that was ever claimed; its identity is unique for ever.
CREATE TABLE purchases (
    id TEXT PRIMARY KEY,
    network TEXT NOT NULL,
    asset TEXT NOT NULL,
    payer TEXT NOT NULL,
    nonce TEXT NOT NULL,
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    gate_version BIGINT NOT NULL,
    price_micro BIGINT NOT NULL,
    credits BIGINT NOT NULL CHECK (credits > 0),
    pay_to BYTEA NOT NULL,
    value_micro TEXT NOT NULL,
    header_hash BYTEA NOT NULL,
    token_used BIGINT NOT NULL DEFAULT 0,
    assume_valid BIGINT NOT NULL,
    confirmed BIGINT NOT NULL DEFAULT 0,
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt > 0),
    granted BIGINT NOT NULL DEFAULT 0,
    remaining BIGINT NOT NULL DEFAULT 0,
    request BYTEA,
    transaction_hash TEXT,
    failure TEXT,
    claimed_ms BIGINT NOT NULL,
    attempt_ms BIGINT NOT NULL,
    granted_ms BIGINT,
    updated_ms BIGINT NOT NULL,
    UNIQUE (network, asset, payer, nonce),
    CHECK (remaining >= 0 AND remaining <= granted)
);
CREATE INDEX purchases_by_state ON purchases (state, attempt_ms);
CREATE INDEX purchases_by_payer ON purchases (payer, granted_ms);
CREATE INDEX purchases_by_gate ON purchases (gate_id, state);
CREATE INDEX purchases_unconfirmed ON purchases (assume_valid, confirmed, state);

-- A call is born in the commit that spends its credit; committed means dispatched.
CREATE TABLE calls (
    id TEXT PRIMARY KEY,
    purchase_id TEXT NOT NULL REFERENCES purchases (id),
    gate_id BIGINT NOT NULL,
    state TEXT NOT NULL,
    status BIGINT,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT
);
CREATE INDEX calls_dispatched ON calls (state) WHERE state = 'DISPATCHED';

-- The ledger: append-only truth. purchases.remaining = sum(delta) of its entries, always.
CREATE TABLE credit_entries (
    cause TEXT NOT NULL,
    reason TEXT NOT NULL,
    purchase_id TEXT NOT NULL REFERENCES purchases (id),
    delta BIGINT NOT NULL CHECK (delta <> 0),
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (cause, reason)
);
